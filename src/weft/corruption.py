"""Ways of losing data, for training, evaluation and tests.

Pure functions: sequences (and a generator where chance is involved) in, sequences with fewer
observations out. Fractions are of a sequence's own length, counted to the nearest step. All act on
every modality unless ``modalities`` names some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from weft.columns import Array
from weft.sequences import Sequences

__all__ = [
    "delete_between",
    "delete_bursts",
    "delete_entries",
    "delete_modalities",
    "delete_steps",
    "keep_between",
    "withhold_modalities",
]


def delete_entries(
    data: Sequences,
    fraction: float,
    generator: torch.Generator,
    modalities: Sequence[str] | None = None,
) -> Sequences:
    """Delete each single entry with probability ``fraction``, independently."""
    _require_fraction(fraction)
    if not fraction:  # no random numbers are used up for nothing
        return data
    return data.delete(
        {
            name: _uniform(data.columns[name].values.shape, generator) < fraction
            for name in _chosen(data, modalities)
        }
    )


def delete_steps(
    data: Sequences,
    fraction: float,
    generator: torch.Generator,
    modalities: Sequence[str] | None = None,
    *,
    together: bool = False,
) -> Sequences:
    """Delete exactly ``fraction`` of each sequence's steps, uniformly at random.

    Modalities lose different steps, unless ``together``.
    """
    _require_fraction(fraction)
    counts = np.round(fraction * data.lengths)

    def marked() -> Array:
        keys = _uniform((data.rows,), generator)
        order = np.lexsort((keys, data.sequence_of_row))
        rank = np.empty(data.rows, np.int64)
        rank[order] = data.step_of_row
        mask: Array = rank < counts[data.sequence_of_row]
        return mask

    return data.delete(_per_modality(_chosen(data, modalities), marked, together))


def delete_bursts(
    data: Sequences,
    fraction: float,
    generator: torch.Generator,
    modalities: Sequence[str] | None = None,
    *,
    together: bool = False,
    chance: float = 1.0,
) -> Sequences:
    """Delete one run of ``fraction`` of each sequence's steps, with a ``chance`` for each.

    It starts anywhere, uniformly, and is cut short at the end (supplement, "Training Parameters").
    """
    _require_fraction(fraction)
    _require_fraction(chance)
    counts = np.round(fraction * data.lengths)

    def marked() -> Array:
        starts = np.floor(_uniform((len(data),), generator) * data.lengths)
        runs = counts
        if chance < 1:  # no random numbers are used up for nothing
            runs = counts * (_uniform((len(data),), generator) < chance)
        since = data.step_of_row - starts[data.sequence_of_row]
        mask: Array = (since >= 0) & (since < runs[data.sequence_of_row])
        return mask

    return data.delete(_per_modality(_chosen(data, modalities), marked, together))


def delete_between(
    data: Sequences, start: float, stop: float, modalities: Sequence[str] | None = None
) -> Sequences:
    """Delete the steps from fraction ``start`` to ``stop`` of each sequence.

    ``delete_between(data, 0.75, 1)`` leaves the last quarter to be forecast.
    """
    inside = _between(data, start, stop)
    return data.delete(dict.fromkeys(_chosen(data, modalities), inside))


def keep_between(
    data: Sequences, start: float, stop: float, modalities: Sequence[str] | None = None
) -> Sequences:
    """Delete all but the steps from fraction ``start`` to ``stop`` of each sequence."""
    outside = ~_between(data, start, stop)
    return data.delete(dict.fromkeys(_chosen(data, modalities), outside))


def delete_modalities(
    data: Sequences, fraction: float, generator: torch.Generator, modalities: Sequence[str]
) -> Sequences:
    """Delete the named modalities wholly in exactly ``fraction`` of the sequences, at random."""
    _require_fraction(fraction)
    hit = np.zeros(len(data), bool)
    order = torch.randperm(len(data), generator=generator).numpy()
    hit[order[: round(fraction * len(data))]] = True
    marked = hit[data.sequence_of_row]
    return data.delete(dict.fromkeys(_chosen(data, modalities), marked))


def withhold_modalities(
    data: Sequences, chance: float | Mapping[str, float], generator: torch.Generator
) -> Sequences:
    """Delete each modality of each sequence wholly with a chance, but never all of them.

    ``chance`` is one for all, or by name; what it does not name stays. Which modality a sequence
    keeps for certain is drawn from those observed anywhere in it, unless one that stays is among
    them.
    """
    chances = chance if isinstance(chance, Mapping) else dict.fromkeys(data.names, chance)
    for name in data.keep(*chances).names:
        _require_fraction(chances[name])
    share = np.array([chances.get(name, 0.0) for name in data.names])[:, None]
    if not share.any():  # no random numbers are used up for nothing
        return data
    whose = data.sequence_of_row
    shape = (len(data.names), len(data))
    counts = np.zeros(shape)
    for i, name in enumerate(data.names):
        seen = data.columns[name].observed.reshape(data.rows, -1).any(1)
        counts[i] = np.bincount(whose[seen], minlength=len(data))
    lots = np.where(counts > 0, _uniform(shape, generator) + (share == 0), -1)
    hit = (lots < lots.max(0)) & (_uniform(shape, generator) < share)
    return data.delete(dict(zip(data.names, hit[:, whose], strict=True)))


def _chosen(data: Sequences, modalities: Sequence[str] | None) -> tuple[str, ...]:
    return data.names if modalities is None else data.keep(*modalities).names


def _per_modality(
    names: Sequence[str], marked: Callable[[], Array], together: bool
) -> dict[str, Array]:
    if together:
        return dict.fromkeys(names, marked())
    return {name: marked() for name in names}


def _between(data: Sequences, start: float, stop: float) -> Array:
    _require_fraction(start)
    _require_fraction(stop)
    if start > stop:
        raise ValueError(f"A segment starts before it stops, got start={start} and stop={stop}.")
    lengths = data.lengths[data.sequence_of_row]
    step = data.step_of_row
    inside: Array = (step >= np.round(start * lengths)) & (step < np.round(stop * lengths))
    return inside


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Array:
    numbers: Array = torch.rand(shape, generator=generator, dtype=torch.float64).numpy()
    return numbers


def _require_fraction(fraction: float) -> None:
    if not 0 <= fraction <= 1:
        raise ValueError(f"A fraction lies between 0 and 1, got {fraction}.")
