"""How training goes: its settings and what they say about each step and epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from weft.objective import Temperature

__all__ = ["TrainingConfig"]


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    Attributes
    ----------
    epochs : int
    batch_size : int, optional
        Sequences (or segments) per step. Not given: as many as make six steps of an epoch, from 4
        to 100.
    learning_rate, weight_decay : float
        Of Adam; the decay is added to the gradient, as in the paper.
    warmup, final_rate : float
        The rate rises linearly over the first share ``warmup`` of all steps, then falls along a
        cosine to ``final_rate`` times its peak.
    anneal : float
        Share of the epochs over which β rises from 0 to 1.
    filter_until : float, optional
        Share of the epochs after which the filtering part of the loss is gone, falling linearly
        from the start. Not given: it stays, as does the only part of a method with one.
    polish : float
        Share of the epochs, at the end, that train the smoothing bound alone (or the one bound a
        method has) on whole sequences from which a random share of the steps is left out, input and
        target alike. Burst deletion and the filtering part teach robust dynamics but bias the noise
        upward; this is a proper bound on incomplete data and removes the bias.
    average : float
        Share of the epochs, at the end, over whose last states the mean is taken (stochastic weight
        averaging). It wants a rate that still moves them, so raise ``final_rate`` with it. With
        validation data the mean is kept if it is better than the best single state.
    align : tuple of float
        Shares of the epochs after which training looks at the lags of modalities with clocks of
        their own, and from then on sees sequences by lags drawn anew for every epoch.
    clip : float
        Largest norm of the gradient; longer ones are scaled down.
    burst : float
        Share of each sequence deleted from the input, in one run per modality. The target stays.
    burst_chance : float
        Chance of a sequence's modality to lose that run. Long runs now and then teach to bridge
        long gaps, and leave most of the data to learn the rest from.
    drop : float
        Share of the single entries deleted from the input, at random; the target stays. It teaches
        to fill gaps, where a state could else keep to itself what each step shows.
    withhold : float or mapping
        Chance of each modality of a sequence to be withheld from the input as a whole, never all of
        them; the target stays. One chance for all, or by name. It teaches to infer each modality
        from any others. Meant for objectives without the losses of each modality alone, which
        would have nothing to go by.
    segment : int, optional
        Train on pieces of this many steps, which learns local dynamics in a fraction of the time.
    segment_until : float
        Share of the epochs after which whole sequences take over.
    bucket : bool
        Put sequences of similar length into one batch.
    patience : int, optional
        Stop after so many epochs without a better validation loss, counted once β is 1.
    hide : float
        Share of the validation steps hidden from inference and scored like the others, so that
        validation measures imputation even where no complete data exist.
    most_failures : int
        Failures (a loss or gradient that is not finite, or two losses in a row far above the first)
        without an epoch free of them before training gives up. Each one goes back to the last good
        state at half the rate; each epoch without one doubles it again, up to the schedule's.
    """

    epochs: int = 100
    batch_size: int | None = None
    learning_rate: float = 0.01
    weight_decay: float = 1e-4
    warmup: float = 0.02
    final_rate: float = 0.02
    anneal: float = 0.05
    filter_until: float | None = None
    polish: float = 0.4
    average: float = 0.0
    align: tuple[float, ...] = (0.2, 0.3, 0.4, 0.5, 0.6)
    clip: float = 5.0
    burst: float = 0.1
    burst_chance: float = 1.0
    drop: float = 0.0
    withhold: float | Mapping[str, float] = 0.0
    segment: int | None = None
    segment_until: float = 1.0
    bucket: bool = True
    patience: int | None = None
    hide: float = 0.25
    most_failures: int = 10

    def batch(self, count: int) -> int:
        """Size of the batches that so many sequences are cut into."""
        return self.batch_size or min(max(math.ceil(count / 6), 4), 100)

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of a step out of so many."""
        rising = (step + 1) / max(1.0, self.warmup * steps)
        falling = 0.5 * (1 + math.cos(math.pi * step / steps))
        share = self.final_rate + (1 - self.final_rate) * falling
        return self.learning_rate * min(1.0, rising) * share

    def temperature(self, epoch: float) -> Temperature:
        """Schedule of β and of the filtering part at a (fractional) epoch."""
        beta = min(1.0, epoch / (self.anneal * self.epochs)) if self.anneal else 1.0
        share = 1.0
        if self.filter_until is not None:
            share = max(0.0, 1 - epoch / (self.filter_until * self.epochs))
        return Temperature(beta, 0.0 if self.polishing(epoch) else share)

    def averaging(self, epoch: int) -> bool:
        """Whether the state after so many epochs belongs to the mean."""
        return epoch > (1 - self.average) * self.epochs

    def aligning(self, epoch: int) -> bool:
        """Whether to look at clocks after so many epochs."""
        return epoch in {math.ceil(share * self.epochs) for share in self.align}

    def polishing(self, epoch: float) -> bool:
        """Whether an epoch belongs to the last ones, without deletion and filtering part."""
        return epoch >= (1 - self.polish) * self.epochs
