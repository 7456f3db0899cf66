"""Inference methods by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from weft.inference.bfvi import BFVI
from weft.inference.method import Method
from weft.inference.recurrent import Recurrent
from weft.modality import Modality

__all__ = ["METHODS", "build"]

METHODS: dict[str, Callable[[Sequence[Modality], int, int], Method]] = {
    "bfvi": BFVI,
    "f-mask": partial(Recurrent, backward=False, skip=False),
    "f-skip": partial(Recurrent, backward=False, skip=True),
    "b-mask": partial(Recurrent, backward=True, skip=False),
    "b-skip": partial(Recurrent, backward=True, skip=True),
    "f-mask-direct": partial(Recurrent, backward=False, skip=False, direct=True),
    "f-skip-direct": partial(Recurrent, backward=False, skip=True, direct=True),
    "b-mask-direct": partial(Recurrent, backward=True, skip=False, direct=True),
    "b-skip-direct": partial(Recurrent, backward=True, skip=True, direct=True),
}
"""What makes each method from modalities, latent and hidden size."""


def build(name: str, modalities: Sequence[Modality], latent: int, hidden: int) -> Method:
    """Make the networks of a named method."""
    if name not in METHODS:
        raise ValueError(f"There is no inference method {name!r}; there are {', '.join(METHODS)}.")
    return METHODS[name](modalities, latent, hidden)
