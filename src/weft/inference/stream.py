"""Forward filtering, one step at a time.

A tracker is what a method knows of several streams, and all it needs to take in their next step. It
does not change: an update gives a new one. Whatever a `Batch` of one step leaves out is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from weft.batch import Batch
from weft.gaussian import Gaussian
from weft.inference.scan import Link, lead
from weft.model import MarkovModel
from weft.particles import Particles

__all__ = ["Tracker", "unseen"]


def unseen(model: MarkovModel, count: int) -> tuple[Link, Gaussian, Tensor]:
    """Link, posterior and ``begun`` of streams before their first step."""
    link = Link.forward(model)
    begun = torch.zeros(count, 1, dtype=torch.bool, device=model.prior_mean.device)
    return link, link.prior.expand(count, -1), begun


@dataclass(frozen=True, eq=False)
class Tracker(ABC):
    """Streams after some steps.

    Attributes
    ----------
    link : Link
        The way to the next state.
    posterior : Gaussian
        ``(stream, latent)``: each stream's state, given all it has seen; the prior at first.
    begun : Tensor
        ``(stream, 1)``, false as long as no message leads on from the state: the next state is
        met with the prior.
    """

    link: Link
    posterior: Gaussian
    begun: Tensor

    @abstractmethod
    def update(self, batch: Batch, particles: Particles, generator: torch.Generator | None) -> Self:
        """Take in one step ``(1, stream, …)`` of every stream."""

    def message(self, particles: Particles, generator: torch.Generator | None) -> Gaussian:
        """What is known of the next state before anything of its step is seen."""
        return lead(self.link, self.posterior, self.begun, particles, generator)

    def tensors(self) -> dict[str, Tensor]:
        """All that updates change, by name."""
        found: dict[str, Tensor] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Gaussian):
                found[f"{field.name}/precision"] = value.precision
                found[f"{field.name}/information"] = value.information
            elif isinstance(value, Tensor):
                found[field.name] = value
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> Self:
        """Return the tracker that had these `tensors`."""
        parts: dict[str, Any] = {}
        for name, tensor in tensors.items():
            field, _, parameter = name.partition("/")
            if parameter:
                parts.setdefault(field, {})[parameter] = tensor
            else:
                parts[field] = tensor
        gaussians = {n: Gaussian(**part) for n, part in parts.items() if isinstance(part, dict)}
        return replace(self, **{**parts, **gaussians})
