"""The supplement's loss, written plainly: one sequence, one subset and one chain at a time.

It uses the model's networks and the paper's formulas in moment form; nothing of the package's
algebra, recursions or objective.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


def softplus_std(raw):
    return F.softplus(raw) + 0.001


def multiply(*factors):
    """Product of (mean, variance) pairs."""
    precision = sum(1 / v for _, v in factors)
    return sum(m / v for m, v in factors) / precision, 1 / precision


def divide(numerator, denominator):
    (m1, v1), (m2, v2) = numerator, denominator
    precision = 1 / v1 - 1 / v2
    return (m1 / v1 - m2 / v2) / precision, 1 / precision


def kl(q, p):
    (m1, v1), (m2, v2) = q, p
    return 0.5 * (torch.log(v2 / v1) + (v1 + (m1 - m2) ** 2) / v2 - 1).sum()


def prior_of(model):
    return model.prior_mean, softplus_std(model.prior_spread) ** 2


def transition(model, net, z):
    gate = torch.sigmoid(net.gate(F.relu(net.gate_hidden(z))))
    candidate = net.candidate(F.relu(net.candidate_hidden(z)))
    mean = gate * candidate + (1 - gate) * net.linear(z)
    return multiply(prior_of(model), (mean, softplus_std(net.spread(candidate)) ** 2))


def encode(encoder, value):
    h = F.relu(encoder.features.hidden(value))
    return encoder.head.mean(h), softplus_std(encoder.head.spread(h)) ** 2


def cubature(state):
    mean, variance = state
    size = len(mean)
    for sign in (1, -1):
        for d in range(size):
            offset = torch.zeros(size, dtype=mean.dtype)
            offset[d] = sign * math.sqrt(size)
            yield mean + variance.sqrt() * offset


def expect(model, net, state):
    """Equations 7 and 8."""
    parts = [transition(model, net, z) for z in cubature(state)]
    mean = sum(m for m, _ in parts) / len(parts)
    return mean, sum(v + m**2 for m, v in parts) / len(parts) - mean**2


def log_normal(decoder, z, value):
    h = F.relu(decoder.hidden(z))
    mean, raw = decoder.output(h)
    std = softplus_std(raw)
    return -0.5 * ((value - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)


def textbook_loss(module, inputs, targets, noise, config, beta):
    """``inputs`` and ``targets``: lists of {modality: (T,) tensor with NaN}, one per sequence."""
    model = module.model
    prior = prior_of(model)
    names = model.names
    chosen = names if config.each_alone is None else config.each_alone
    subsets = [list(names), *([name] for name in chosen)]
    steps = sum(len(next(iter(x.values()))) for x in targets)
    filtering = smoothing = 0.0
    for s, subset in enumerate(subsets):
        for b, (x, full) in enumerate(zip(inputs, targets, strict=True)):
            length = len(next(iter(x.values())))
            alone = config.cross and s > 0
            if alone:  # and it has lost nothing
                x = full
            factors = [
                [
                    encode(module.encoders[names.index(name)], x[name][t : t + 1])
                    for name in subset
                    if not x[name][t].isnan()
                ]
                for t in range(length)
            ]

            def emission(t, z, subset=subset, factors=factors, full=full, alone=alone):
                total = 0.0
                if alone and not factors[t]:
                    return total
                for name in names if config.cross else subset:
                    if not full[name][t].isnan():
                        weight = model.modalities[names.index(name)].weight
                        decoder = model.decoders[names.index(name)]
                        total = total + weight * log_normal(decoder, z, full[name][t])
                return total

            # Filtering: the one-particle backward chain
            past, seen = prior, False
            for t in reversed(range(length)):
                posterior = multiply(past, *factors[t])
                z = posterior[0] + posterior[1].sqrt() * noise[0, t, s, b]
                filtering = filtering - emission(t, z) + beta * kl(posterior, past)
                seen = seen or bool(factors[t])
                past = transition(model, model.backward_factor, z) if seen else prior

            # Smoothing: many particles backward, one forward
            messages, message, seen = [None] * length, prior, False
            for t in reversed(range(length)):
                messages[t] = message
                seen = seen or bool(factors[t])
                if seen:
                    posterior = multiply(message, *factors[t])
                    message = expect(model, model.backward_factor, posterior)
            past = prior
            for t in range(length):
                fused = multiply(messages[t], *factors[t], past)
                posterior = divide(fused, prior)
                z = posterior[0] + posterior[1].sqrt() * noise[1, t, s, b]
                smoothing = smoothing - emission(t, z) + beta * kl(posterior, past)
                past = transition(model, model.forward_factor, z)

    match = kl(prior, expect(model, model.forward_factor, prior))
    match = match + kl(prior, expect(model, model.backward_factor, prior))
    return (
        config.filter_weight * filtering / steps
        + config.smooth_weight * smoothing / steps
        + config.match_weight * beta * match
    )
