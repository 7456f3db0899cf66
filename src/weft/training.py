"""The training loop: schedules, guards, validation, checkpoints, resume.

All randomness of step ``i`` comes from ``stream(seed, …, i)``, so a resumed run continues to the
same numbers as an uninterrupted one, from any step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from weft.alignment import Alignment
from weft.bookkeeping import Epoch, Progress
from weft.corruption import delete_bursts, delete_entries, delete_steps, withhold_modalities
from weft.gaussian import ImproperGaussianError
from weft.inference.method import Method
from weft.layouts import Inferring
from weft.monitoring import MetricsLog, interruptible
from weft.objective import Loss, Objective, ObjectiveConfig, Temperature
from weft.persistence import FileError, read_file, write_file
from weft.randomness import stream
from weft.schedules import TrainingConfig
from weft.sequences import Sequences

__all__ = ["CHECKPOINT", "Change", "Trainer", "TrainingError"]

CHECKPOINT = "checkpoint.safetensors"
DIVERGED = 10.0
"""A loss this many times its first size above its first value counts as a failure."""

COLLAPSED, TRUSTED = 3.0, 1.0
"""How often the lowest loss of an epoch a loss may lie above it: an epoch's before it counts as a
failure, a step's while the state is one to go back to."""

MOST_HIDDEN = 0.6
"""Largest share of the steps that a polishing step leaves out."""

STEP, ORDER, VALIDATION, AUGMENT, CORRUPT, CLOCKS = range(6)  # keys of the random streams
LOGGER = logging.getLogger("weft")
Change: TypeAlias = Callable[[Sequences, torch.Generator], Sequences]


class TrainingError(RuntimeError):
    """Training failed again and again; the message says which term of which modality."""


class Trainer:
    """Fit a module to data; call `run` once.

    Parameters
    ----------
    module : Method
    data : Sequences
        Training data that conform to the model.
    validation : Sequences, optional
        Judged after every epoch; the best state is restored at the end.
    objective, config : ObjectiveConfig, TrainingConfig
    seed : int
        Decides order, deletion and noise of every step.
    directory : Path, optional
        Where checkpoints and metrics go; nothing is written without one.
    watch : callable, optional
        Called after every step with the share done and the step's loss.
    augment : callable, optional
        Changes the sequences of every batch before anything else is done to them, with a generator
        of its own, so that more can be learned from them than they show.
    corrupt : callable, optional
        Takes from the sequences of every batch what inference is to do without, with a generator of
        its own. What it takes is scored nevertheless.
    """

    def __init__(
        self,
        module: Method,
        data: Sequences,
        *,
        validation: Sequences | None = None,
        objective: ObjectiveConfig = ObjectiveConfig(),
        config: TrainingConfig = TrainingConfig(),
        seed: int = 0,
        directory: Path | None = None,
        watch: Callable[[float, Loss], None] | None = None,
        augment: Change | None = None,
        corrupt: Change | None = None,
    ) -> None:
        self.module = module
        self.train = Alignment(data)
        self.validation = None if validation is None else Alignment(validation)
        self.objective = Objective(module, objective)
        self.config = config
        self.seed = seed
        self.directory = directory
        self.watch = watch
        self.augment = augment
        self.corrupt = corrupt
        self.optimizer = _adam(module, config)
        self.progress = Progress()
        self.best: dict[str, Tensor] = {}
        self.mean: dict[str, Tensor] = {}
        self.good = self._copy_state()
        self._lay_out()
        counts = [len(self._source(epoch)) for epoch in range(config.epochs)]
        self.plan = [math.ceil(count / config.batch(count)) for count in counts]
        self.steps = sum(self.plan)

    def run(self, *, resume: bool = False) -> list[Epoch]:
        """Train to the end, or until validation stops improving, and restore the best state.

        Ctrl-C finishes the step, saves, and is raised again.
        """
        if resume:
            self._load()
        self.module.train()
        try:
            self._loop()
        finally:  # inference must not depend on what else is in its batch
            self.module.eval()
        self._settle()
        return self.history

    def _settle(self) -> None:
        """Take the mean of the last epochs' states, if asked for, unless validation prefers one."""
        if self.mean:
            self.module.load_state_dict(self.mean)
            validation, best = self._validate(), self.progress.best
            self.module.eval()
            if validation is None or best is None or validation < best:
                return
        if self.best:
            self.module.load_state_dict(self.best)

    def _loop(self) -> None:
        progress = self.progress
        with interruptible() as interrupted, MetricsLog(self.directory, progress.history) as log:
            while progress.step < self.steps and not progress.stopped:
                loss = self._step()
                progress.step += 1
                progress.position += 1
                if progress.position == self.plan[progress.epoch]:
                    record = self._finish_epoch()
                    log.add(progress.step, record)
                    self._save()
                if self.watch is not None:
                    self.watch(progress.step / self.steps, loss)
                if interrupted():
                    self._save()
                    raise KeyboardInterrupt(f"Training stopped after step {progress.step}.")

    @property
    def history(self) -> list[Epoch]:
        """Everything measured so far, epochs before a resume included."""
        return [Epoch(**record) for record in self.progress.history]

    # Clocks

    def _lay_out(self) -> None:
        """Lay training data out by lags drawn for this epoch."""
        self.whole = self.train.drawn(stream(self.seed, CLOCKS, self.progress.epoch))
        segment = self.config.segment
        self.pieces = self.whole if segment is None else self.whole.segments(segment)

    def _look_at_clocks(self) -> None:
        """Find out anew how far modalities are off."""
        how = Inferring(self.objective.config.particles, seed=self.seed)
        self.module.eval()
        self.train.look(self.module, how)
        if self.validation is not None and self.train.clocks:
            self.validation.look(self.module, how, self.train.clocks)
            self.progress.best, self.best = None, {}  # by clocks that are past
        self.module.train()

    # One step

    def _source(self, epoch: int) -> Sequences:
        cut = epoch < self.config.segment_until * self.config.epochs
        return self.pieces if cut and not self.config.polishing(epoch) else self.whole

    def _step(self) -> Loss:
        progress, config, epoch = self.progress, self.config, self.progress.epoch
        source = self._source(epoch)
        order = stream(self.seed, ORDER, epoch)
        chosen = source.groups(config.batch(len(source)), generator=order, bucket=config.bucket)
        generator = stream(self.seed, STEP, progress.step)
        data = source[chosen[progress.position]]
        if self.augment is not None:
            data = self.augment(data, stream(self.seed, AUGMENT, progress.step))
        inputs, target = self._pose(data, generator)
        temperature = config.temperature(epoch + progress.position / self.plan[epoch])
        loss, problem = self._loss(inputs, target, generator, temperature)
        problem = problem or self._risen(loss)
        norm = torch.tensor(math.nan)
        if problem is None:
            trusted = not progress.risen and progress.rise(loss.total.item()) <= TRUSTED
            if progress.position == 0 and trusted:
                self.good = self._copy_state()
            self.optimizer.zero_grad()
            torch.autograd.backward(loss.total)
            norm = self._shorten_gradients()
            problem = None if norm.isfinite() else self._bad_gradients()
        if problem is not None:
            self._go_back(problem)
            return loss
        torch.nn.utils.clip_grads_with_norm_(self.module.parameters(), config.clip, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = progress.rate_scale * config.rate(progress.step, self.steps)
        self.optimizer.step()
        progress.add(loss, float(norm))
        return loss

    def _pose(self, data: Sequences, generator: torch.Generator) -> tuple[Sequences, Sequences]:
        """What is given and what is scored: all of it, or when polishing what is given."""
        config = self.config
        if not config.polishing(self.progress.epoch):
            return self.conceal(data, generator), data
        share = float(torch.rand((), generator=generator)) * MOST_HIDDEN
        seen = delete_steps(data, share, generator)
        return seen, seen

    def conceal(self, data: Sequences, generator: torch.Generator) -> Sequences:
        """Take from sequences what inference has to do without in training."""
        config = self.config
        if self.corrupt is not None:
            data = self.corrupt(data, stream(self.seed, CORRUPT, self.progress.step))
        data = delete_bursts(data, config.burst, generator, chance=config.burst_chance)
        data = delete_entries(data, config.drop, generator)
        return withhold_modalities(data, config.withhold, generator)

    def _loss(
        self,
        inputs: Sequences,
        target: Sequences,
        generator: torch.Generator,
        temperature: Temperature,
    ) -> tuple[Loss, str | None]:
        """Return the loss and, if it is of no use, what is wrong with it."""
        try:
            loss: Loss = self.objective(
                self.module.batch(inputs), generator, self.module.batch(target), temperature
            )
        except ImproperGaussianError as error:
            return Loss(torch.tensor(math.nan), {}), f"the state stopped being a density ({error})"
        bad = [name for name, term in loss.terms.items() if not term.isfinite()]
        if bad or not loss.total.isfinite():
            return loss, f"the loss is not finite in {', '.join(bad) or 'its total'}"
        return loss, None

    def _risen(self, loss: Loss) -> str | None:
        """What is wrong with a loss far above the first, if the one before it was so, too.

        A single one is a strange batch, whose gradient is clipped like any other. After two in a
        row it is the state that is strange.
        """
        progress, total = self.progress, loss.total.item()
        first = total if progress.first_loss is None else progress.first_loss
        before, progress.risen = progress.risen, total > first + DIVERGED * max(1.0, abs(first))
        progress.first_loss = first
        if not progress.risen:
            return None
        largest = max(loss.terms, key=lambda name: float(loss.terms[name]))
        what = (
            f"the loss rose to {total:.3g} from {first:.3g} at the start, most of it in {largest}"
        )
        if before:
            return what
        LOGGER.info("At step %d (epoch %d) %s, by itself.", progress.step, progress.epoch, what)
        return None

    def _shorten_gradients(self) -> Tensor:
        """Norm of the gradient, which is scaled down first if its square would overflow."""
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not norm.isfinite():
            largest = torch.nn.utils.get_total_norm(gradients, math.inf)
            if largest.isfinite():
                torch._foreach_div_(gradients, largest)
                norm = torch.nn.utils.get_total_norm(gradients)
        return norm

    def _bad_gradients(self) -> str:
        names = [
            self._describe(name)
            for name, parameter in self.module.named_parameters()
            if parameter.grad is not None and not parameter.grad.isfinite().all()
        ]
        return f"the gradient is not finite in {', '.join(names)}"

    def _describe(self, parameter: str) -> str:
        """Name a parameter by its modality, where it belongs to one."""
        parts = {"encoders.": "encoder", "memory.cells.": "GRU", "model.decoders.": "decoder"}
        for part, kind in parts.items():
            if parameter.startswith(part):
                position, rest = parameter.removeprefix(part).split(".", 1)
                name = self.module.model.names[int(position)]
                return f"the {kind} of modality {name!r} ({rest})"
        return parameter

    def _go_back(self, problem: str) -> None:
        """Restore the last good state and go on at half the rate, or give up."""
        progress = self.progress
        progress.failures += 1
        progress.streak += 1
        progress.rate_scale *= 0.5
        progress.risen, progress.losses = False, []  # those of a state that is undone
        self._restore_state(self.good)
        where = f"At step {progress.step} (epoch {progress.epoch}) {problem}."
        if progress.streak > self.config.most_failures:
            rate = progress.rate_scale * self.config.learning_rate
            raise TrainingError(
                f"{where} This was failure {progress.streak} without a good epoch, at learning "
                f"rate {rate:.2g}. The module keeps its last good state. Check the data of that "
                "modality for extreme values, lower learning_rate, or lower its weight."
            )
        LOGGER.warning(
            "%s Back to the last good state, rate scaled by %.3g.", where, progress.rate_scale
        )

    # One epoch

    def _finish_epoch(self) -> dict[str, Any]:
        progress, config = self.progress, self.config
        progress.epoch, progress.position = progress.epoch + 1, 0
        epoch = progress.epoch
        validation, median = self._validate(), progress.median()
        record = Epoch(
            epoch=epoch,
            step=progress.step,
            validation=validation,
            beta=config.temperature(epoch).beta,
            rate=progress.rate_scale * config.rate(progress.step - 1, self.steps),
            failures=progress.failures,
            **progress.means(),
        )
        progress.history.append(asdict(record))
        if progress.failures == 0:  # a clean epoch wins trust back
            progress.streak = 0
            progress.rate_scale = min(1.0, 2 * progress.rate_scale)
        progress.failures = 0
        settled = config.temperature(epoch).beta >= 1
        if settled and math.isfinite(median):  # losses compare only once β is 1
            self._compare(median)
        if validation is not None:
            self._judge(validation, settled)
        if config.averaging(epoch):
            self._average()
        if config.aligning(epoch):
            self._look_at_clocks()
        self._lay_out()
        LOGGER.info(
            "epoch %d/%d: loss %.4g%s",
            epoch,
            config.epochs,
            record.loss,
            "" if validation is None else f", validation {validation:.4g}",
        )
        return progress.history[-1]

    def _compare(self, loss: float) -> None:
        """Go back if an epoch has lost what others had gained."""
        progress = self.progress
        lowest, rise = progress.lowest, progress.rise(loss)
        if lowest is None or loss < lowest:
            progress.lowest = loss
        if rise > COLLAPSED:
            self._go_back(f"the epoch's median loss is {loss:.3g}, after {lowest:.3g} before")

    def _judge(self, validation: float, settled: bool) -> None:
        """Keep the best state; count epochs without a better one."""
        progress = self.progress
        if math.isfinite(validation) and (progress.best is None or validation < progress.best):
            progress.best, progress.stale = validation, 0
            self.best = {n: t.detach().clone() for n, t in self.module.state_dict().items()}
        elif settled:
            progress.stale += 1
            progress.stopped = self.config.patience is not None and (
                progress.stale >= self.config.patience
            )

    @torch.no_grad()
    def _average(self) -> None:
        """Take this state into the mean."""
        self.progress.averaged += 1
        for name, tensor in self.module.state_dict().items():
            mean = self.mean.setdefault(name, tensor.clone())
            if mean.is_floating_point():
                mean.lerp_(tensor, 1 / self.progress.averaged)
            else:  # counts
                mean.copy_(tensor)

    @torch.no_grad()
    def _validate(self) -> float | None:
        """Loss at full temperature with some steps hidden, the same ones every time."""
        if self.validation is None:
            return None
        self.module.eval()
        generator = stream(self.seed, VALIDATION)
        data = self.validation.settled()
        hidden = delete_steps(data, self.config.hide, generator)
        total = 0.0
        size = self.config.batch(len(data))
        for group in data.groups(size, bucket=True):
            target = data[group]
            loss, problem = self._loss(hidden[group], target, generator, Temperature())
            total += math.inf if problem else loss.total.item() * target.rows
        self.module.train()
        return total / data.rows

    # State

    def _copy_state(self) -> dict[str, Tensor]:
        """Weights and optimizer moments, by name."""
        state = {f"weights/{n}": t for n, t in self.module.state_dict().items()}
        for name, parameter in self.module.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                state[f"adam/{key}/{name}"] = value
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    @torch.no_grad()
    def _restore_state(self, state: Mapping[str, Tensor]) -> None:
        weights = {n.removeprefix("weights/"): t for n, t in state.items() if n[:8] == "weights/"}
        self.module.load_state_dict(weights)
        for name, parameter in self.module.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                value.copy_(state[f"adam/{key}/{name}"])

    def _settings(self) -> dict[str, str]:
        """Everything that decides the numbers of a run, as text."""
        config = {name: repr(value) for name, value in asdict(self.config).items()}
        objective = {f"objective.{n}": repr(v) for n, v in vars(self.objective.config).items()}
        rest = {
            "inference": self.module.name,
            "data": repr(self.train.data),
            "validation": repr(None if self.validation is None else self.validation.data),
            "seed": repr(self.seed),
        }
        return {**config, **objective, **rest}

    def _save(self) -> None:
        if self.directory is None:
            return
        tensors = {f"state/{name}": tensor for name, tensor in self._copy_state().items()}
        tensors |= {f"good/{name}": tensor for name, tensor in self.good.items()}
        tensors |= {f"best/{name}": tensor for name, tensor in self.best.items()}
        tensors |= {f"mean/{name}": tensor for name, tensor in self.mean.items()}
        for part, alignment in self._alignments().items():
            tensors |= {f"clocks/{part}/{name}": t for name, t in alignment.state().items()}
        header = {"progress": asdict(self.progress), "settings": self._settings()}
        write_file(self.directory / CHECKPOINT, "checkpoint", header, tensors)

    def _load(self) -> None:
        if self.directory is None:
            raise ValueError("To resume, say from which directory.")
        stored = read_file(self.directory / CHECKPOINT, "checkpoint")
        for name, value in self._settings().items():
            before = stored.header["settings"].get(name)
            if before != value:
                raise FileError(
                    f"The checkpoint in {self.directory} was made with {name} {before}, but this "
                    f"run has {value}. Resume with the same settings and data, or start anew in "
                    "another directory."
                )
        self._restore_state(stored.group("state"))
        self.good, self.best = stored.group("good"), stored.group("best")
        self.mean = stored.group("mean")
        self.progress = Progress(**stored.header["progress"])
        for part, alignment in self._alignments().items():
            alignment.restore(stored.group(f"clocks/{part}"))
        self._lay_out()

    def _alignments(self) -> dict[str, Alignment]:
        parts = {"train": self.train, "validation": self.validation}
        return {name: part for name, part in parts.items() if part is not None}


def _adam(module: Method, config: TrainingConfig) -> torch.optim.Adam:
    """Make an optimizer whose state is there from the start, so that it can always be copied."""
    optimizer = torch.optim.Adam(
        module.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    for parameter in module.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer
