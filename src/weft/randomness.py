"""Independent streams of random numbers from one seed."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["stream"]


def stream(seed: int, *key: int) -> torch.Generator:
    """Return a generator that depends on the seed and the key alone.

    Work that numbers its steps can draw from ``stream(seed, step)`` and be resumed at any step
    without a saved state.

    Examples
    --------
    >>> a, b = stream(0, 7), stream(0, 7)
    >>> bool(torch.rand(1, generator=a) == torch.rand(1, generator=b))
    True
    """
    state = np.random.SeedSequence([seed, *key]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))
