"""`MDMM`: the class users meet. It prepares data, delegates, and gives results in user units."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch

from weft.batch import Batch
from weft.bookkeeping import Epoch
from weft.bounds import importance_bound
from weft.clocks import Clock, Readings
from weft.columns import Array, Column, DataError
from weft.errors import Errors, Views
from weft.frames import Roles, read_table
from weft.gaussian import Gaussian
from weft.inference import Method, build
from weft.layouts import Inferring, Layouts, hear
from weft.levels import Levels
from weft.modality import Modality
from weft.monitoring import progress_bar
from weft.objective import Loss, ObjectiveConfig
from weft.particles import Cubature, Particles
from weft.prediction import Prediction
from weft.randomness import stream
from weft.records import Usage, read_model, write_model
from weft.results import Inference, Posterior, Sampled
from weft.scaling import Scale, Scaling
from weft.schedules import TrainingConfig
from weft.sequences import Sequences
from weft.simulators import Marginals, Window, batches
from weft.streaming import Stream
from weft.training import Change, Trainer, TrainingError

__all__ = ["FIT", "MDMM", "NotFittedError", "load"]

Data = Sequences | Mapping[str, Any]
FIT = ObjectiveConfig(filter_weight=0.2, smooth_weight=0.8, particles=Cubature())
"""What `MDMM.fit` minimises by default; ``ObjectiveConfig()`` is the paper's."""
MOST_SEQUENCES, MOST_ERRORS = 1000, 2**24
"""Training sequences, and numbers of them, looked at again to learn how long errors last."""
TRIED = 10
"""Trajectories along which views of gaps are tried."""
ERRORS = 4  # a key of the random streams, beside those of training


class NotFittedError(RuntimeError):
    """A verb was called before `MDMM.fit`."""


class MDMM:
    """A multimodal deep Markov model: fit once, then filter, smooth, impute, forecast, classify.

    Parameters
    ----------
    modalities : sequence of Modality
    latent, hidden : int
        Width of the state, and of the networks' hidden layers.
    inference : str
        How states are inferred: ``"bfvi"``, or by one of the recurrent baselines ``"f-mask"``,
        ``"f-skip"``, ``"b-mask"``, ``"b-skip"`` (with ``-direct`` behind it, each step's features
        also reach the combiner past the GRU).
    particles : Particles
        Points of the recursions at inference.
    refine : int
        Rounds of posterior linearisation after smoothing (see `weft.inference.linearized`): whole
        covariances instead of variances, from the generative model alone. Smoothing and all that
        is predicted from it get more accurate and a few times slower; filters and `score` stay as
        they are. Decoders are run at ``2 · latent`` points per step, so this is for small states.

    Examples
    --------
    >>> from weft.datasets import make_spirals
    >>> data = make_spirals(torch.Generator().manual_seed(0), count=8, steps=12).noisy
    >>> model = MDMM([Modality("x"), Modality("y")], latent=3, hidden=8)
    >>> model = model.fit(data, training=TrainingConfig(epochs=2), progress=False)
    >>> model.forecast(data, steps=5)["x"].mean.shape
    (8, 5, 1)
    """

    def __init__(
        self,
        modalities: Sequence[Modality],
        latent: int = 16,
        hidden: int = 64,
        *,
        inference: str = "bfvi",
        particles: Particles = Cubature(),
        refine: int = 0,
    ) -> None:
        if refine < 0:
            raise ValueError(f"refine is a number of rounds, at least 0, got {refine}.")
        self.modalities = tuple(modalities)
        self.latent = latent
        self.hidden = hidden
        self.inference = inference
        self.particles = particles
        self.refine = refine
        self.roles: Roles | None = None
        self.history: list[Epoch] = []
        self._scaling: Scaling | None = None
        self._errors: dict[str, Views] = {}
        self._clocks: dict[str, Clock] = {}
        self._module = self._build(seed=0)

    def _build(self, seed: int) -> Method:
        """Make fresh networks; user modules are copied, so that fits do not share them.

        They rest in evaluation mode; only training leaves it.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            modalities = copy.deepcopy(self.modalities)
            return build(self.inference, modalities, self.latent, self.hidden).eval()

    @property
    def module(self) -> Method:
        """The networks, as an `nn.Module` in the model's (standardised) units."""
        return self._module

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What it was made with, as scikit-learn wants it."""
        names = ("modalities", "latent", "hidden", "inference", "particles", "refine")
        return {name: getattr(self, name) for name in names}

    def set_params(self, **params: Any) -> Self:
        """Change what it was made with; what was learned is forgotten."""
        known = self.get_params()
        for name in params:
            if name not in known:
                raise ValueError(f"There is no parameter {name!r}; there are {', '.join(known)}.")
        self.__init__(**{**known, **params})  # type: ignore[misc]
        return self

    # Learning

    def fit(
        self,
        data: Data,
        *,
        validation: Data | None = None,
        training: TrainingConfig = TrainingConfig(),
        objective: ObjectiveConfig = FIT,
        augment: Change | None = None,
        corrupt: Change | None = None,
        seed: int = 0,
        directory: str | Path | None = None,
        resume: bool = False,
        progress: bool = True,
    ) -> Self:
        """Learn from incomplete data, from scratch.

        Parameters
        ----------
        data, validation : Sequences or mapping of arrays
            With validation data, the state that does best on them is kept.
        training, objective : TrainingConfig, ObjectiveConfig
            How to train, and what on; the objective's defaults here are `FIT`, not the paper's.
        augment : callable, optional
            ``augment(sequences, generator)`` changes the sequences of every training batch, in the
            units of ``data``: shifts, turns, noise, whatever leaves their meaning.
        corrupt : callable, optional
            ``corrupt(sequences, generator)`` takes from every training batch what inference is to
            do without, and what training scores nevertheless: the gaps that will be asked about.
        seed : int
            Same seed, same machine: same weights.
        directory : path, optional
            Where checkpoints and ``metrics.jsonl`` go.
        resume : bool
            Go on from the checkpoint in ``directory``, to the numbers of an uninterrupted run.
        progress : bool
            Show a progress bar.
        """
        module = self._build(seed)
        train = self._read(data)
        roles = None if train.table is None else train.table.reading
        scaling = Scaling.fit(self.modalities, train)
        module.model.start(train.columns)
        held_out = None if validation is None else scaling.apply(self._read(validation))

        def scaled(change: Change | None) -> Change | None:
            if change is None:
                return None
            return lambda batch, generator: scaling.apply(change(scaling.undo(batch), generator))

        with progress_bar("fit", progress) as update:

            def watch(share: float, loss: Loss) -> None:
                update(share, f"loss {loss.total.item():.2f} ({_summary(loss.terms)})")

            trainer = Trainer(
                module,
                scaling.apply(train),
                validation=held_out,
                objective=objective,
                config=training,
                seed=seed,
                directory=None if directory is None else Path(directory),
                watch=watch,
                augment=scaled(augment),
                corrupt=scaled(corrupt),
            )
            try:
                trainer.run(resume=resume)
            except (KeyboardInterrupt, TrainingError):  # what was learned so far can be used
                self._adopt(trainer, scaling)
                raise
        self._adopt(trainer, scaling)
        self.roles = roles
        return self

    def _adopt(self, trainer: Trainer, scaling: Scaling) -> None:
        self._module, self._scaling = trainer.module, scaling
        self.history = trainer.history
        self._clocks = trainer.train.clocks
        self._errors = self._learn_errors(trainer)

    def _learn_errors(self, trainer: Trainer) -> dict[str, Views]:
        """Learn what there is to know of the errors of numbers with levels.

        From some training sequences, varied and with gaps as in training: so there are many kinds
        of levels, and it shows whom to trust in a gap.
        """
        train, seed = trainer.train.settled(), trainer.seed
        found = {}
        for modality in self.module.model.modalities:
            if not (modality.level and modality.likelihood.location_scale):
                continue
            name, steps = modality.name, modality.size * int(train.lengths.max())
            count = int(np.clip(MOST_ERRORS // steps, 1, MOST_SEQUENCES))
            some = train[np.unique(np.linspace(0, len(train) - 1, count).astype(int))]
            if trainer.augment is not None:
                some = trainer.augment(some, stream(seed, ERRORS))
            everything, others = (
                self._learn_view(modality, some, given) for given in (some, some.hide(name))
            )
            errors = Views(everything, others, trust=np.full(modality.shape, 0.5))
            left = trainer.conceal(some, stream(seed, ERRORS, 1))
            layouts = Layouts(self.module, left, self._inferring(TRIED, seed))
            trust = self._levels(modality, layouts, errors).learn_trust(some)
            found[name] = replace(errors, trust=trust)
        return found

    def _learn_view(self, modality: Modality, truth: Sequences, given: Sequences) -> Errors:
        """How long what MAP sequences are off by lasts."""
        layouts = Layouts(self.module, given, Inferring(self.particles, spread=0.0))
        expected = self._prediction(modality, layouts, None, None).mean
        return Errors.estimate(truth.padded(modality.name) - expected)

    # Inference

    @torch.no_grad()
    def filter(
        self,
        data: Data,
        *,
        direction: Literal["forward", "backward"] = "forward",
        samples: int = 100,
        seed: int = 0,
    ) -> Inference:
        """Infer each state from past and present, or (``backward``) from present and future."""
        if direction not in ("forward", "backward"):
            raise ValueError(f"A filter runs 'forward' or 'backward', not {direction!r}.")
        source = self._prepare(data)
        found = []
        for i, (window, batch) in enumerate(self._batches(source, samples)):
            filtered = self.module.filter(
                batch,
                backward=direction == "backward",
                particles=self.particles,
                generator=stream(seed, i),
            )
            found.append((window, filtered.posterior[:, 0]))
        simulators = [Marginals(gaussian, window) for window, gaussian in found]
        shape = (len(source), int(source.lengths.max()))
        scales, model = self._fitted().scales, self.module.model
        predictions = {
            modality.name: Prediction(
                modality, model, lambda: simulators, shape, scales.get(modality.name), samples, seed
            )
            for modality in model.modalities
        }
        return Inference(self._latent_moments(source, found), predictions)

    @torch.no_grad()
    def smooth(self, data: Data, *, samples: int = 100, seed: int = 0) -> Inference:
        """Infer each state from everything.

        The posterior holds marginals (BFVI's are those of two filters); predictions come from
        joint trajectories.
        """
        layouts = self._layouts(self._prepare(data), self._inferring(samples, seed))
        found = []
        for i, (window, batch) in enumerate(layouts.settled()):
            particles, generator = self.particles, stream(seed, i)
            smoothed = self.module.smooth(batch, particles=particles, generator=generator)
            posterior = smoothed.posterior[:, 0]
            if self.refine:
                guide = layouts.how.guide(self.module, batch, i)
                chain = layouts.how.chain(self.module, batch, guide)
                posterior = chain.marginals.where(chain.begun[..., None], posterior)
            found.append((window, posterior))
        moments = self._latent_moments(layouts.source, found)
        return Inference(moments, self._predictions(layouts))

    @torch.no_grad()
    def sequence(self, data: Data, *, samples: int = 0, seed: int = 0) -> Sampled:
        """Draw joint latent trajectories; with ``samples=0`` the paper's one MAP sequence."""
        count = max(samples, 1)
        how = self._inferring(count, seed, spread=1.0 if samples else 0.0)
        layouts = self._layouts(self._prepare(data), how)
        latents = np.full((count, *layouts.shape, self.latent), np.nan)
        for simulator in layouts.simulators():
            window = simulator.window
            for t, z in enumerate(simulator.states(count, seed)):
                inside = np.flatnonzero((window.first <= t) & (t < window.stop))
                rows, steps = window.index[inside], t - window.first[inside]
                latents[:, rows, steps] = z[:, inside].double().numpy()
        return Sampled(latents, self._predictions(layouts))

    # Tasks

    def impute(self, data: Data, *, samples: int = 100, seed: int = 0) -> Sequences:
        """Fill every gap; observed values stay as they are."""
        original = self._read(data)
        predictions = self._infer(self._prepare(original), samples, seed)
        sequence, step = original.sequence_of_row, original.step_of_row
        columns = {
            name: column.fill(predictions[name].point()[sequence, step])
            for name, column in original.columns.items()
        }
        return replace(original, columns=columns)

    def forecast(
        self, data: Data, steps: int, *, samples: int = 100, seed: int = 0
    ) -> dict[str, Prediction]:
        """Predict every modality for ``steps`` steps after each sequence's end."""
        source = self._prepare(data)
        longer = source.extend(after=_positive(steps))
        return self._infer(longer, samples, seed, source.lengths, steps)

    def backcast(
        self, data: Data, steps: int, *, samples: int = 100, seed: int = 0
    ) -> dict[str, Prediction]:
        """Infer every modality for ``steps`` steps before each sequence's start."""
        source = self._prepare(data)
        longer = source.extend(before=_positive(steps))
        return self._infer(longer, samples, seed, np.zeros_like(source.lengths), steps)

    def generate(
        self,
        data: Data,
        targets: Sequence[str],
        given: Sequence[str] | None = None,
        *,
        samples: int = 100,
        seed: int = 0,
    ) -> dict[str, Prediction]:
        """Predict the ``targets`` from the ``given`` modalities (all others if not said)."""
        names = self.module.model.names
        for name in [*targets, *(given or ())]:
            self.module.model.position(name)
        known = [n for n in names if n not in targets] if given is None else given
        source = self._prepare(data)
        source = source.hide(*(name for name in names if name not in known))
        predictions = self._infer(source, samples, seed)
        return {name: predictions[name] for name in targets}

    def classify(
        self,
        data: Data,
        label: str,
        given: Sequence[str] | None = None,
        *,
        samples: int = 100,
        seed: int = 0,
    ) -> Prediction:
        """Predict a label modality at every step from the others.

        Its own values are not used unless it is among ``given``.
        """
        modality = self.module.model.modalities[self.module.model.position(label)]
        if modality.categories is None:
            raise ValueError(f"Modality {label!r} has no categories, so it cannot be classified.")
        return self.generate(data, [label], given, samples=samples, seed=seed)[label]

    def sample(self, n: int, steps: int, *, seed: int = 0) -> Sequences:
        """Draw ``n`` new sequences of ``steps`` steps from the model."""
        fields = self.module.model.fields
        rows = _positive(n) * _positive(steps)
        nothing = {name: Column.missing(field, rows) for name, field in fields.items()}
        source = self._prepare(Sequences(nothing, np.full(n, steps), tuple(range(n))))
        predictions = self._infer(source, 1, seed)
        return Sequences.from_arrays(
            {name: prediction.sample(1)[0] for name, prediction in predictions.items()},
            categories={n: f.categories for n, f in fields.items() if f.categories is not None},
        )

    def score(self, data: Data, *, samples: int = 100, seed: int = 0) -> float:
        """Bound ``log p(x)`` from below, per time step, in the user's units (nats)."""
        source = self._read(data)
        return float(self.score_sequences(source, samples=samples, seed=seed).sum() / source.rows)

    @torch.no_grad()
    def score_sequences(self, data: Data, *, samples: int = 100, seed: int = 0) -> Array:
        """Bound ``log p(x)`` of every sequence from below; see `importance_bound`."""
        source = self._prepare(data)
        bounds = np.zeros(len(source))
        for i, (window, batch) in enumerate(self._batches(source, samples)):
            guide = self._inferring(samples, seed).guide(self.module, batch, i)
            generator = stream(seed, int(window.index[0]), 2)
            bounds[window.index] = importance_bound(guide, batch, samples, generator)
        return bounds - self._fitted().log_volume(source)

    # Streams

    def stream(self, count: int = 1, *, samples: int = 100, seed: int = 0) -> Stream:
        """Begin to follow ``count`` streams, one step at a time; see `Stream.update`."""
        return Stream(self.module, self._fitted(), self.particles, count, samples, seed)

    def restore_stream(self, path: str | Path) -> Stream:
        """Go on with streams written by `Stream.save`."""
        return Stream.restore(Path(path), self.module, self._fitted(), self.particles)

    # Files

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file (safetensors and JSON, no code)."""
        usage = Usage(self.particles, self.refine, self.roles, self._errors, self._clocks)
        write_model(Path(path), self.module, self._fitted(), self.modalities, usage)

    # Ways in

    def read(self, frame: Any) -> Sequences:
        """Read a table (or a list of them) as the one that the model was fitted to.

        Columns of a modality may be absent altogether; it is missing then.
        """
        if self.roles is None:
            raise ValueError(
                "This model was not fitted to a table. Use Sequences.from_frame to say what the "
                "columns are."
            )
        return Sequences.from_contents(read_table(frame, self.roles, partial=True))

    def _fitted(self) -> Scaling:
        if self._scaling is None:
            raise NotFittedError("This model has learned nothing yet. Call fit(data) first.")
        return self._scaling

    def _read(self, data: Data) -> Sequences:
        """Conforming data in the user's units."""
        source = data if isinstance(data, Sequences) else Sequences.from_arrays(data)
        return source.conform(self.module.model.fields)

    def _prepare(self, data: Data) -> Sequences:
        """Conforming data in the model's units."""
        return self._fitted().apply(self._read(data))

    def _batches(self, source: Sequences, samples: int) -> Iterator[tuple[Window, Batch]]:
        return batches(source, samples, self.module.model.prior_mean.dtype)

    def _inferring(self, samples: int, seed: int, spread: float = 1.0) -> Inferring:
        return Inferring(self.particles, self.refine, samples, seed, spread)

    @torch.no_grad()
    def _layouts(
        self,
        source: Sequences,
        how: Inferring,
        first: Array | None = None,
        width: int | None = None,
    ) -> Layouts:
        """Prepare trajectories, after a look at the clocks."""
        chances = {
            modality.name: self._clocks[modality.name].read(
                hear(self.module, modality, source, how)
            )
            for modality in self.module.model.modalities
            if modality.name in self._clocks
        }
        return Layouts(self.module, source, how, Readings(chances), first, width)

    def _infer(
        self,
        source: Sequences,
        samples: int,
        seed: int,
        first: Array | None = None,
        width: int | None = None,
    ) -> dict[str, Prediction]:
        """Predict all modalities along trajectories, for ``width`` steps from ``first`` on."""
        return self._predictions(
            self._layouts(source, self._inferring(samples, seed), first, width)
        )

    def _predictions(self, layouts: Layouts) -> dict[str, Prediction]:
        scales, found = self._fitted().scales, {}
        for modality in self.module.model.modalities:
            name, levels = modality.name, None
            if modality.level:
                levels = self._levels(modality, layouts, self._errors.get(name))
            found[name] = self._prediction(modality, layouts, scales.get(name), levels)
        return found

    def _prediction(
        self, modality: Modality, layouts: Layouts, scale: Scale | None, levels: Levels | None
    ) -> Prediction:
        return Prediction(
            modality,
            self.module.model,
            lambda: layouts.simulators(modality.name),
            layouts.shape,
            scale,
            layouts.how.samples,
            layouts.how.seed,
            levels,
        )

    def _levels(self, modality: Modality, layouts: Layouts, errors: Views | None) -> Levels:
        """Prepare to move predictions, which were made from all of the source, by their errors."""
        name = modality.name
        return Levels(
            modality,
            self.module.model,
            lambda: layouts.simulators(name),
            lambda: layouts.simulators(name, without=name),
            layouts.given.keep(name),
            errors,
            layouts.how.samples,
            layouts.how.seed,
        )

    def _latent_moments(
        self, source: Sequences, found: Sequence[tuple[Window, Gaussian]]
    ) -> Posterior:
        shape = (len(source), int(source.lengths.max()), self.latent)
        mean, std = np.full(shape, np.nan), np.full(shape, np.nan)
        for window, gaussian in found:
            for b, (i, first, stop) in enumerate(
                zip(window.index, window.first, window.stop, strict=True)
            ):
                mean[i, : stop - first] = gaussian.mean[first:stop, b].detach().numpy()
                std[i, : stop - first] = gaussian.std[first:stop, b].detach().numpy()
        return Posterior(mean, std)


def load(path: str | Path, modalities: Sequence[Modality] | None = None) -> MDMM:
    """Read a model written by `MDMM.save`.

    Models with networks or likelihoods of the user's own need their ``modalities`` declared again;
    the file says which they were.
    """
    record = read_model(Path(path), modalities)
    usage = record.usage
    model = MDMM(
        record.modalities,
        record.latent,
        record.hidden,
        inference=record.inference,
        particles=usage.particles,
        refine=usage.refine,
    )
    model._module.load_state_dict(record.weights)
    model._scaling, model.roles, model._errors = record.scaling, usage.roles, dict(usage.errors)
    model._clocks = dict(usage.clocks)
    return model


def _summary(terms: Mapping[str, torch.Tensor], most: int = 4) -> str:
    """One chain's terms in few characters, smoothing if it is there: ``kl 1.2 x 0.3 y 0.4``."""
    chain = "smooth" if "kl/smooth" in terms else "filter"
    names = [name for name in terms if f"/{chain}" in name]
    parts = [f"{name.removeprefix(f'nll/{chain}/')} {terms[name].item():.2f}" for name in names]
    return " ".join(part.replace(f"kl/{chain}", "kl") for part in parts[:most])


def _positive(steps: int) -> int:
    if steps < 1:
        raise DataError(f"At least one step or sequence is needed, got {steps}.")
    return steps
