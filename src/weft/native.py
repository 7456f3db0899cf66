"""Which compiled kernels are in use.

They are built with the package where there is a compiler; elsewhere, or with the environment
variable ``WEFT_NATIVE=off``, everything runs in PyTorch. ``WEFT_NATIVE`` may also name one of
`KERNELS`.
"""

from __future__ import annotations

import os

try:
    from weft import _scan
except ImportError:  # installed without a compiler
    _scan = None  # type: ignore[assignment]

__all__ = ["KERNELS", "active"]

KERNELS: tuple[str, ...] = () if _scan is None else tuple(_scan.kernels())
"""Instruction sets this processor has kernels for, the fastest first."""


def _choose(wish: str | None) -> str | None:
    if wish == "off" or not KERNELS:
        return None
    if wish is not None and wish not in KERNELS:
        raise ValueError(f"WEFT_NATIVE is {wish!r}; it may be 'off' or one of {KERNELS}.")
    return wish or KERNELS[0]


_ACTIVE = _choose(os.environ.get("WEFT_NATIVE") or None)


def active() -> str | None:
    """Name the kernels in use; none if everything runs in PyTorch."""
    return _ACTIVE
