"""`Stream`: observations as they come, of one stream or of thousands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.arrivals import read_step
from weft.batch import Batch
from weft.columns import Column, DataError
from weft.inference import Method, Tracker
from weft.particles import Particles
from weft.persistence import FileError, read_file, write_file
from weft.prediction import Prediction
from weft.randomness import stream
from weft.records import fingerprint
from weft.results import Posterior
from weft.scaling import Scaling
from weft.simulators import ROWS, Onward, Window

__all__ = ["Stream"]

KIND = "stream"
PAST = "past/"


class Stream:
    """Streams that are filtered forward, one step at a time; `MDMM.stream` makes them.

    After any number of updates the state is that of `MDMM.filter` at the last of the same steps.
    Streams of one object step together: one at which nothing was seen is missing there.

    Parameters
    ----------
    module : Method
    scaling : Scaling
    particles : Particles
    count : int
        How many streams.
    samples, seed : int
        Trajectories behind a prediction, and where their random numbers come from.

    Attributes
    ----------
    steps : int
        Updates so far.
    state : Posterior
        Mean and standard deviation of the current states, ``(stream, latent)``.

    Examples
    --------
    >>> from weft import MDMM, Modality, TrainingConfig
    >>> model = MDMM([Modality("x"), Modality("kind", categories=["a", "b"])], latent=3, hidden=8)
    >>> data = {"x": np.zeros((4, 6)), "kind": [["a", "b"] * 3] * 4}
    >>> model = model.fit(data, training=TrainingConfig(epochs=1), progress=False)
    >>> stream = model.stream()
    >>> stream.update({"x": 0.3, "kind": "a"}).mean.shape
    (1, 3)
    >>> _ = stream.update({})  # nothing was seen
    >>> stream.predict()["kind"].probabilities.shape, stream.predict(steps=5)["x"].mean.shape
    ((1, 1, 2), (1, 5, 1))
    """

    @torch.no_grad()
    def __init__(
        self,
        module: Method,
        scaling: Scaling,
        particles: Particles,
        count: int = 1,
        samples: int = 100,
        seed: int = 0,
    ) -> None:
        if count < 1 or samples < 1:
            raise ValueError(
                f"At least one stream and one sample are needed, got {count} and {samples}."
            )
        self.count = count
        self.samples = samples
        self.seed = seed
        self.steps = 0
        self._module = module
        self._scaling = scaling
        self._particles = particles
        self._fields = module.model.fields
        self._lengths, self._index = torch.ones(count, dtype=torch.int64), torch.arange(count)
        self._tracker = module.track(count)
        self._past = self._unseen(0)
        self.state = _moments(self._tracker)

    @torch.no_grad()
    def update(self, values: Mapping[str, Any]) -> Posterior:
        """Take in one step of every stream, and return the `state` after it.

        Parameters
        ----------
        values : mapping
            Modality name to numbers ``(stream, *shape)`` or labels ``(stream,)``; a single stream
            needs no stream axis. NaN, ``None`` and modalities left out are missing, so ``{}`` is a
            step at which nothing was seen. Values that cannot be right are refused, and all
            streams stay as they were.
        """
        batch = self._batch(read_step(values, self._fields, self.count, self.steps))
        batch = replace(batch, past=self._past)
        generator = stream(self.seed, self.steps)
        tracker = self._tracker.update(batch, self._particles, generator)
        state = _moments(tracker)
        lost = ~np.isfinite(state.mean + state.std).all(1)
        if lost.any():
            raise DataError(
                f"With the values of step {self.steps} the state of stream {int(lost.argmax())} "
                "is no longer a finite number. Look for values far out of range."
            )
        self._tracker, self.state, self.steps = tracker, state, self.steps + 1
        self._past = self._remember(batch)
        return state

    def predict(self, steps: int = 0) -> dict[str, Prediction]:
        """Predict every modality at the current step, or for ``steps`` steps after it.

        Arrays are ``(stream, 1, …)`` for the current step and ``(stream, steps, …)`` for those
        after it. A prediction stays what it was when the stream goes on.
        """
        if steps < 0:
            raise ValueError(f"Predictions are for 0 or more steps ahead, got {steps}.")
        first, stop = (1, steps + 1) if steps else (0, 1)
        model, posterior = self._module.model, self._tracker.posterior
        size = max(1, ROWS // self.samples)
        groups = [
            np.arange(start, min(start + size, self.count)) for start in range(0, self.count, size)
        ]
        simulators = [
            Onward(
                model,
                posterior[rows],
                Window(rows, np.full_like(rows, first), np.full_like(rows, stop)),
            )
            for rows in groups
        ]
        seed = stream(self.seed, self.steps, 1).initial_seed()
        return {
            modality.name: Prediction(
                modality,
                model,
                lambda: simulators,
                (self.count, stop - first),
                self._scaling.scales.get(modality.name),
                self.samples,
                seed,
            )
            for modality in model.modalities
        }

    # Files

    def save(self, path: str | Path) -> None:
        """Write all streams to one file, from which `MDMM.restore_stream` goes on."""
        header = {
            "count": self.count,
            "samples": self.samples,
            "seed": self.seed,
            "steps": self.steps,
            "particles": repr(self._particles),
            **_identity(self._module, self._scaling),
        }
        past = {f"{PAST}values/{name}": value for name, value in self._past.values.items()}
        past |= {f"{PAST}observed/{name}": seen for name, seen in self._past.observed.items()}
        write_file(Path(path), KIND, header, self._tracker.tensors() | past)

    @classmethod
    def restore(cls, path: Path, module: Method, scaling: Scaling, particles: Particles) -> Stream:
        """Read streams that were saved with the same model."""
        stored = read_file(path, KIND)
        header = stored.header
        mine = {"particles": repr(particles), **_identity(module, scaling)}
        for what, value in mine.items():
            if header[what] != value:
                raise FileError(
                    f"{path} holds streams of a model with {what} {header[what]}, but this one has "
                    f"{value}. Restore them with the model they were saved with."
                )
        made = cls(module, scaling, particles, header["count"], header["samples"], header["seed"])
        made.steps = header["steps"]
        past = {n.removeprefix(PAST): t for n, t in stored.tensors.items() if n.startswith(PAST)}
        now = {n: t for n, t in stored.tensors.items() if not n.startswith(PAST)}
        made._tracker = made._tracker.restore(now)
        made._past = replace(
            made._past,
            values={name: past[f"values/{name}"] for name in made._past.values},
            observed={name: past[f"observed/{name}"] for name in made._past.observed},
        )
        made.state = _moments(made._tracker)
        return made

    def _unseen(self, steps: int) -> Batch:
        """So many steps at which nothing was seen, of what is encoded with earlier steps."""
        dtype = self._module.model.prior_mean.dtype
        values = {
            modality.name: torch.zeros(steps, self.count, *modality.shape, dtype=dtype)
            for modality in self._module.model.modalities
            if modality.context
        }
        observed = {
            name: torch.zeros_like(value, dtype=torch.bool) for name, value in values.items()
        }
        return Batch(values, observed, steps * self._lengths, self._index)

    def _remember(self, batch: Batch) -> Batch:
        """What later steps see of this one and those before it."""
        past, missing = self._past, self._unseen(1)
        reach = {modality.name: modality.context for modality in self._module.model.modalities}

        def behind(before: Tensor, now: Tensor, name: str) -> Tensor:
            return torch.cat([before, now])[-reach[name] :]

        return replace(
            past,
            values={
                name: behind(value, batch.values.get(name, missing.values[name]), name)
                for name, value in past.values.items()
            },
            observed={
                name: behind(seen, batch.observed.get(name, missing.observed[name]), name)
                for name, seen in past.observed.items()
            },
        )

    def _batch(self, columns: Mapping[str, Column]) -> Batch:
        """Lay one step out in the model's units."""
        dtype = self._module.model.prior_mean.dtype
        values, observed = {}, {}
        for name, column in columns.items():
            scaled = self._scaling.rescale(name, column)
            kind = dtype if column.categories is None else torch.int64
            value = torch.from_numpy(scaled.values).to(kind)
            if not value.isfinite().all():
                row = int((~value.isfinite()).nonzero()[0, 0])
                raise DataError(
                    f"Modality {name!r} holds a number too large for {kind} at stream {row}, step "
                    f"{self.steps}. Correct it, or mark it as missing."
                )
            values[name] = value[None]
            observed[name] = torch.from_numpy(scaled.observed)[None]
        return Batch(values, observed, self._lengths, self._index)


def _moments(tracker: Tracker) -> Posterior:
    posterior = tracker.posterior
    return Posterior(posterior.mean.double().numpy(), posterior.std.double().numpy())


def _identity(module: Method, scaling: Scaling) -> dict[str, Any]:
    """What tells one fitted model from another, the clearest first."""
    model = module.model
    return {
        "inference": module.name,
        "latent": model.latent,
        "hidden": model.hidden,
        "modalities": list(model.names),
        "fingerprint": fingerprint(module, scaling, model.modalities),
    }
