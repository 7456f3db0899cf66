"""The generative model: prior, transitions in both directions, decoders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from weft.columns import Column, Field
from weft.gaussian import STD_FLOOR, Gaussian, positive_std
from weft.modality import Modality
from weft.networks import GatedTransition

__all__ = ["REACH", "MarkovModel"]

REACH = 6.0
"""Prior standard deviations within which transitions tell states apart."""


class MarkovModel(nn.Module):
    r"""A stationary multimodal deep Markov model.

    .. math::
        p(z_t) = N(\mu_0, \sigma_0^2), \qquad
        p(z_t \mid z_{t-1}) \propto p(z_t)\, f(z_{t-1}), \qquad
        x^m_t \sim \Pi^m(\mathrm{decoder}^m(z_t))

    and likewise backward in time with a network of its own. The transition's precision is at least
    the prior's by construction. A one-way model has no backward transition, and its prior is the
    standard normal, fixed.

    Parameters
    ----------
    modalities : sequence of Modality
    latent, hidden : int
        Width of the state, and of every built-in network's hidden layer.
    one_way : bool
        Whether the model only leads forward in time.
    """

    prior_mean: Tensor
    prior_spread: Tensor

    def __init__(
        self, modalities: Sequence[Modality], latent: int, hidden: int, *, one_way: bool = False
    ) -> None:
        super().__init__()
        names = [modality.name for modality in modalities]
        if not names:
            raise ValueError("A model needs at least one modality.")
        if len(set(names)) != len(names):
            raise ValueError(f"Modality names must differ, got {names}.")
        if latent < 1 or hidden < 1:
            raise ValueError(f"Sizes must be at least 1, got latent={latent}, hidden={hidden}.")
        self.modalities = tuple(modalities)
        self.latent = latent
        self.hidden = hidden
        self.one_way = one_way
        mean = torch.zeros(latent)
        spread = torch.full((latent,), math.log(math.expm1(1 - STD_FLOOR)))
        if one_way:
            self.register_buffer("prior_mean", mean)
            self.register_buffer("prior_spread", spread)
        else:
            self.prior_mean, self.prior_spread = nn.Parameter(mean), nn.Parameter(spread)
        self.forward_factor = GatedTransition(latent, hidden)
        if not one_way:
            self.backward_factor = GatedTransition(latent, hidden)
        self.decoders = nn.ModuleList(m.build_decoder(latent, hidden) for m in modalities)

    def start(self, columns: Mapping[str, Column]) -> None:
        """Let decoders start where training data lie; see `Modality.start`."""
        for modality, decoder in zip(self.modalities, self.decoders, strict=True):
            modality.start(decoder, columns[modality.name])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the modalities, in order."""
        return tuple(modality.name for modality in self.modalities)

    @property
    def fields(self) -> dict[str, Field]:
        """What data for this model must look like."""
        return {modality.name: modality.field for modality in self.modalities}

    def position(self, name: str) -> int:
        """Position of a modality by name."""
        if name not in self.names:
            raise ValueError(f"The model has no modality {name!r}; it has {self.names}.")
        return self.names.index(name)

    def prior(self) -> Gaussian:
        """State distribution ``p(z)``, ``(latent,)``, the same at every step."""
        return Gaussian.from_moments(self.prior_mean, positive_std(self.prior_spread))

    def step_forward(self, z: Tensor) -> Gaussian:
        """Distribution of the next state, ``p(z_t | z_{t-1})``, for ``(…, latent)``."""
        return self.step(self.forward_factor, z, self.prior())

    def step_backward(self, z: Tensor) -> Gaussian:
        """Distribution of the previous state, ``p(z_t | z_{t+1})``, for ``(…, latent)``."""
        if self.one_way:
            raise ValueError("A one-way model has no backward transition.")
        return self.step(self.backward_factor, z, self.prior())

    def step(self, network: nn.Module, z: Tensor, prior: Gaussian) -> Gaussian:
        """Multiply the prior by a network's factor at ``z``, held within `bounds`."""
        found: Gaussian = network(torch.clamp(z, *self.bounds(prior)))
        return prior * found

    def bounds(self, prior: Gaussian) -> Tensor:
        """Lowest and highest states that transitions tell apart, ``(2, latent)``.

        A network knows nothing of states where the prior has no mass, and a linear path that grows
        there would carry a long chain to infinity; so states beyond are treated as at the edge.
        """
        reach = REACH * prior.std.detach()
        centre = prior.mean.detach()
        return torch.stack([centre - reach, centre + reach])

    def decode(self, name: str, z: Tensor) -> Tensor:
        """Raw likelihood output ``(…, outputs)`` of one modality for states ``(…, latent)``."""
        raw: Tensor = self.decoders[self.position(name)](z.flatten(0, -2))
        return raw.reshape(*z.shape[:-1], raw.shape[-1])

    def log_prob(self, name: str, z: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Log-density ``(…)`` of a modality's observed entries given states ``(…, latent)``."""
        modality = self.modalities[self.position(name)]
        raw = self.decode(name, z)
        return modality.likelihood.log_prob(raw, value, observed, len(modality.shape))
