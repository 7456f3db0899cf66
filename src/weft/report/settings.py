"""What decides the contents of a report."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ENTRIES", "MODALITIES", "WINDOW", "Settings"]

MODALITIES, ENTRIES, WINDOW = 12, 3, 300
"""Most modalities, entries of a modality, and steps of a sequence that are drawn."""


@dataclass(frozen=True)
class Settings:
    """How many sequences are drawn, how many samples are behind each prediction, and the seed."""

    sequences: int
    samples: int
    seed: int

    def __post_init__(self) -> None:
        if self.sequences < 1 or self.samples < 1:
            raise ValueError("A report needs at least one sequence and one sample.")
