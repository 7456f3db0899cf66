"""The method as one would first write it down: the yardstick of `make bench`.

Batched over sequences, but otherwise as the equations stand: a loop over time steps, one pass for
each modality subset and each of the two ELBOs, means and variances instead of natural parameters,
K particles laid out and pushed through the networks step by step, autograd for the gradient. It
uses the networks of a `BFVI` module, so both forms compute the same function; a test holds that.
Sequences all have the same length; missing values are NaN, a step is missing as a whole.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from weft import BFVI
from weft.inference.bfvi import Encoder
from weft.networks import GatedTransition, ImageDecoder, ImageFeatures
from weft.objective import ObjectiveConfig

__all__ = ["textbook_loss", "textbook_smooth"]

Moments = tuple[Tensor, Tensor]
Draw = Callable[[Moments], Tensor]
"""Particles ``(particle, batch, latent)`` of a distribution."""


def std_of(raw: Tensor) -> Tensor:
    return F.softplus(raw) + 0.001


def prior_of(module: BFVI) -> Moments:
    model = module.model
    return model.prior_mean, std_of(model.prior_spread).square()


def multiply(*factors: Moments) -> Moments:
    precision = torch.zeros(())
    weighted = torch.zeros(())
    for mean, variance in factors:
        precision = precision + 1 / variance
        weighted = weighted + mean / variance
    return weighted / precision, 1 / precision


def divide(numerator: Moments, denominator: Moments) -> Moments:
    precision = 1 / numerator[1] - 1 / denominator[1]
    weighted = numerator[0] / numerator[1] - denominator[0] / denominator[1]
    return weighted / precision, 1 / precision


def choose(mask: Tensor, yes: Moments, no: Moments) -> Moments:
    return torch.where(mask, yes[0], no[0]), torch.where(mask, yes[1], no[1])


def kl(q: Moments, p: Moments) -> Tensor:
    (m1, v1), (m2, v2) = q, p
    return 0.5 * (torch.log(v2 / v1) + (v1 + (m1 - m2) ** 2) / v2 - 1).sum(-1)


def transition(module: BFVI, net: GatedTransition, z: Tensor) -> Moments:
    """``p(z') f(z' | z)``, with states held within six standard deviations of the prior."""
    prior = prior_of(module)
    reach = 6 * prior[1].sqrt().detach()
    z = torch.clamp(z, prior[0].detach() - reach, prior[0].detach() + reach)
    gate = torch.sigmoid(net.gate(F.relu(net.gate_hidden(z))))
    candidate = net.candidate(F.relu(net.candidate_hidden(z)))
    mean = gate * candidate + (1 - gate) * net.linear(z)
    return multiply(prior, (mean, std_of(net.spread(candidate)).square()))


def expect(module: BFVI, net: GatedTransition, particles: Tensor) -> Moments:
    """Moments of the mixture over particles (eqs. 7, 8)."""
    mean, variance = transition(module, net, particles)
    centre = mean.mean(0)
    return centre, variance.mean(0) + mean.square().mean(0) - centre.square()


def plain(network: ImageFeatures | ImageDecoder, x: Tensor) -> Tensor:
    """Run a network layer by layer in PyTorch's default layout of images."""
    if isinstance(network, ImageDecoder):
        x = network.hidden(x)
    for layer in network.layers:
        x = x.contiguous() if type(layer).__name__ == "_ChannelsLast" else layer(x)
    return x


def encode(module: BFVI, name: str, values: Tensor) -> tuple[Moments, Tensor]:
    """Gaussian of each step ``(time, batch, latent)``, and where it was observed."""
    encoder = module.encoders[module.model.position(name)]
    assert isinstance(encoder, Encoder)
    rows = values.flatten(0, 1)
    missing = rows.isnan() if rows.is_floating_point() else rows < 0
    rows = rows.masked_fill(missing, 0)
    network = encoder.features
    features = plain(network, rows) if isinstance(network, ImageFeatures) else network(rows)
    shape = (*values.shape[:2], -1)
    mean = encoder.head.mean(features).reshape(shape)
    variance = std_of(encoder.head.spread(features)).square().reshape(shape)
    observed = ~missing.flatten(1).any(1) if missing.dim() > 1 else ~missing
    return (mean, variance), observed.reshape(*values.shape[:2], 1)


def at_step(
    t: int, message: Moments, found: list[tuple[Moments, Tensor]]
) -> tuple[Moments, Tensor]:
    """Multiply what was observed at a step into a message; say whether anything was."""
    any_seen = torch.zeros_like(found[0][1][t])
    for (mean, variance), observed in found:
        message = choose(observed[t], multiply(message, (mean[t], variance[t])), message)
        any_seen = any_seen | observed[t]
    return message, any_seen


def filtered(
    module: BFVI,
    net: GatedTransition,
    found: list[tuple[Moments, Tensor]],
    order: list[int],
    draw: Draw,
) -> list[Moments]:
    """Algorithm 1: the message that reaches each step, in either order of time."""
    steps, batch = found[0][1].shape[:2]
    prior = prior_of(module)
    start = (prior[0].expand(batch, -1), prior[1].expand(batch, -1))
    messages = [start] * steps
    message, seen = start, torch.zeros(batch, 1, dtype=torch.bool)
    for t in order:
        messages[t] = message
        posterior, now = at_step(t, message, found)
        seen = seen | now
        message = choose(seen, expect(module, net, draw(posterior)), start)
    return messages


def log_likelihood(module: BFVI, name: str, z: Tensor, values: Tensor) -> Tensor:
    """Sum of the weighted log-likelihood of a modality over its observed steps."""
    model = module.model
    modality = model.modalities[model.position(name)]
    missing = values.isnan() if values.is_floating_point() else values < 0
    filled = values.masked_fill(missing, 0)
    decoder = model.decoders[model.position(name)]
    rows = z.flatten(0, 1)
    raw = plain(decoder, rows) if isinstance(decoder, ImageDecoder) else decoder(rows)
    raw = raw.reshape(*z.shape[:2], -1)
    entries = modality.likelihood.distribution(raw, modality.shape).log_prob(filled)
    return modality.weight * entries.masked_fill(missing, 0).sum()


def textbook_loss(
    module: BFVI,
    values: dict[str, Tensor],
    config: ObjectiveConfig,
    draw: Draw,
    noise: Tensor,
    swarm: Tensor,
) -> Tensor:
    """The multimodal bidirectional loss at β = 1.

    ``values`` are ``(time, batch, *shape)``; ``noise`` ``(2, time, subset, batch, latent)`` serves
    the one-particle chains, ``swarm`` the prior matching.
    """
    model = module.model
    steps, batch = next(iter(values.values())).shape[:2]
    prior = prior_of(module)
    start = (prior[0].expand(batch, -1), prior[1].expand(batch, -1))
    subsets = [list(model.names), *([name] for name in model.names)]
    filtering = smoothing = torch.zeros(())
    for s, subset in enumerate(subsets):
        # Filtering ELBO
        found = [encode(module, name, values[name]) for name in subset]
        past, seen = start, torch.zeros(batch, 1, dtype=torch.bool)
        states: list[Tensor] = [torch.empty(0)] * steps
        for t in reversed(range(steps)):
            posterior, now = at_step(t, past, found)
            states[t] = posterior[0] + posterior[1].sqrt() * noise[0, t, s]
            filtering = filtering + kl(posterior, past).sum()
            seen = seen | now
            past = choose(seen, transition(module, model.backward_factor, states[t]), start)
        for name in subset:
            filtering = filtering - log_likelihood(module, name, torch.stack(states), values[name])

        # Smoothing ELBO
        found = [encode(module, name, values[name]) for name in subset]
        order = list(reversed(range(steps)))
        messages = filtered(module, model.backward_factor, found, order, draw)
        past = start
        for t in range(steps):
            posterior, _ = at_step(t, divide(multiply(past, messages[t]), prior), found)
            states[t] = posterior[0] + posterior[1].sqrt() * noise[1, t, s]
            smoothing = smoothing + kl(posterior, past).sum()
            past = transition(module, model.forward_factor, states[t])
        for name in subset:
            smoothing = smoothing - log_likelihood(module, name, torch.stack(states), values[name])

    matched = prior[0] + prior[1].sqrt() * swarm
    match = kl(prior, expect(module, model.forward_factor, matched))
    match = match + kl(prior, expect(module, model.backward_factor, matched))
    count = steps * batch
    return (
        config.filter_weight * filtering / count
        + config.smooth_weight * smoothing / count
        + config.match_weight * match
    )


def textbook_smooth(module: BFVI, values: dict[str, Tensor], draw: Draw) -> Moments:
    """Two-filter marginals ``(time, batch, latent)`` from all modalities."""
    model = module.model
    steps = next(iter(values.values())).shape[0]
    prior = prior_of(module)
    found = [encode(module, name, values[name]) for name in model.names]
    behind = filtered(module, model.forward_factor, found, list(range(steps)), draw)
    ahead = filtered(module, model.backward_factor, found, list(reversed(range(steps))), draw)
    marginals = []
    for t in range(steps):
        both = divide(multiply(behind[t], ahead[t]), prior)
        marginals.append(at_step(t, both, found)[0])
    return torch.stack([m for m, _ in marginals]), torch.stack([v for _, v in marginals])
