"""An oracle: stationary diagonal linear-Gaussian models and their dense joint posterior.

The model is z_t = m + a (z_{t-1} - m) + noise with stationary variance v, per latent dimension;
entry d of every modality observes dimension d: x = c z + b + noise of variance r. The oracle
writes the joint covariance of all T · latent states down and conditions it by the textbook
formula; it shares nothing with the package.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from weft import BFVI, Gaussian, Modality, Sequences
from weft.batch import Batch
from weft.gaussian import STD_FLOOR
from weft.networks import GatedTransition, MLPDecoder


class ExactEncoder(nn.Module):
    """The likelihood p(x | z) as a factor over z; unobserved entries have no precision."""

    def __init__(self, name: str, gain: Tensor, offset: Tensor, noise: Tensor) -> None:
        super().__init__()
        self.name = name
        self.gain, self.offset, self.noise = gain, offset, noise

    def forward(self, batch: Batch) -> tuple[Tensor, Gaussian]:
        rows = batch.rows(self.name)
        values, observed = batch.window(self.name, rows, 0)
        precision = observed * self.gain.square() / self.noise
        information = observed * self.gain * (values - self.offset) / self.noise
        return rows, Gaussian(precision, information)


def inverse_softplus(value: Tensor) -> Tensor:
    return value + torch.log(-torch.expm1(-value))


@dataclass
class LinearGaussian:
    """Parameters as arrays over latent dimensions (and modalities first, for the emission)."""

    a: np.ndarray
    m: np.ndarray
    v: np.ndarray
    gain: np.ndarray
    offset: np.ndarray
    noise: np.ndarray

    @classmethod
    def random(cls, seed: int, latent: int, modalities: int) -> LinearGaussian:
        rng = np.random.default_rng(seed)
        emission = (modalities, latent)
        return cls(
            a=rng.uniform(0.3, 0.97, latent) * rng.choice([-1, 1], latent),
            m=rng.normal(size=latent),
            v=rng.uniform(0.3, 2.0, latent),
            gain=rng.uniform(0.5, 2.0, emission) * rng.choice([-1, 1], emission),
            offset=rng.normal(size=emission),
            noise=rng.uniform(0.1, 1.0, emission),
        )

    @property
    def names(self) -> list[str]:
        return [f"m{i}" for i in range(len(self.gain))]

    @property
    def latent(self) -> int:
        return len(self.a)

    def module(self) -> BFVI:
        """The same model as hand-set weights of the package's own networks, in float64."""
        modalities = [Modality(name, self.latent) for name in self.names]
        module = BFVI(modalities, self.latent, hidden=2 * self.latent).double()
        model = module.model
        with torch.no_grad():
            model.prior_mean.copy_(torch.tensor(self.m))
            model.prior_spread.copy_(inverse_softplus(torch.tensor(self.v).sqrt() - STD_FLOOR))
            for network in (model.forward_factor, model.backward_factor):
                self._set_transition(network)
            for i, decoder in enumerate(model.decoders):
                self._set_decoder(decoder, i)
        emission = self.gain, self.offset, self.noise
        module.encoders = nn.ModuleList(
            ExactEncoder(name, *(torch.tensor(part[i]) for part in emission))
            for i, name in enumerate(self.names)
        )
        return module

    def _set_transition(self, network: GatedTransition) -> None:
        """f(z) = p(z' | z) / p(z'), a Gaussian with mean z/a - m(1-a)/a and variance v(1-a²)/a²."""
        a, m, v = torch.tensor(self.a), torch.tensor(self.m), torch.tensor(self.v)
        network.gate.bias.fill_(-1e6)
        network.gate.weight.zero_()
        network.linear.weight.copy_(torch.diag(1 / a))
        network.linear.bias.copy_(-m * (1 - a) / a)
        network.spread.weight.zero_()
        std = (v * (1 - a.square())).sqrt() / a.abs()
        network.spread.bias.copy_(inverse_softplus(std - STD_FLOOR))

    def _set_decoder(self, decoder: nn.Module, i: int) -> None:
        """A ReLU layer of z and -z, combined to gain · z + offset, beside a constant spread."""
        assert isinstance(decoder, MLPDecoder)
        unit = torch.eye(self.latent, dtype=torch.float64)
        gain = torch.diag(torch.tensor(self.gain[i]))
        decoder.hidden.weight.copy_(torch.cat([unit, -unit]))
        decoder.hidden.bias.zero_()
        decoder.output.weight.copy_(
            torch.cat([torch.cat([gain, -gain], 1), torch.zeros(self.latent, 2 * self.latent)])
        )
        spread = inverse_softplus(torch.tensor(self.noise[i]).sqrt() - STD_FLOOR)
        decoder.output.bias.copy_(torch.cat([torch.tensor(self.offset[i]), spread]))

    def simulate(self, seed: int, lengths: list[int], missing: float) -> Sequences:
        """Draw sequences and delete entries at random."""
        return self.simulate_pair(seed, lengths, missing)[1]

    def simulate_pair(
        self, seed: int, lengths: list[int], missing: float
    ) -> tuple[Sequences, Sequences]:
        """Draw noise-free signals, and the same with noise and with entries deleted."""
        rng = np.random.default_rng(seed)
        signals: dict[str, list[np.ndarray]] = {name: [] for name in self.names}
        data: dict[str, list[np.ndarray]] = {name: [] for name in self.names}
        for steps in lengths:
            mean, covariance = self.joint(steps)
            z = rng.multivariate_normal(mean, covariance).reshape(steps, self.latent)
            for i, name in enumerate(self.names):
                signal = self.gain[i] * z + self.offset[i]
                x = signal + rng.normal(size=signal.shape) * np.sqrt(self.noise[i])
                x[rng.uniform(size=x.shape) < missing] = np.nan
                signals[name].append(signal)
                data[name].append(x)
        return Sequences.from_arrays(signals), Sequences.from_arrays(data)

    # The oracle

    def joint(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Prior mean and covariance of (z_1, …, z_T), flattened step by step."""
        lag = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
        size = steps * self.latent
        covariance = np.zeros((steps, self.latent, steps, self.latent))
        for d in range(self.latent):
            covariance[:, d, :, d] = self.v[d] * self.a[d] ** lag
        return np.tile(self.m, steps), covariance.reshape(size, size)

    def posterior(
        self,
        data: Sequences,
        sequence: int,
        *,
        first: int = 0,
        last: int | None = None,
        names: list[str] | None = None,
        fixed: dict[int, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean (T, latent) and covariance (T, latent, T, latent) given observations first … last.

        ``fixed`` conditions on whole states: step → value.
        """
        steps = int(data.lengths[sequence])
        last = steps if last is None else last
        mean, covariance = self.joint(steps)
        rows, targets, noises = self._observations(data, sequence, first, last, names)
        for t, value in (fixed or {}).items():
            for d in range(self.latent):
                row = np.zeros(len(mean))
                row[t * self.latent + d] = 1.0
                rows.append(row)
                targets.append(value[d])
                noises.append(0.0)
        if rows:
            h = np.array(rows)
            s = h @ covariance @ h.T + np.diag(noises)
            k = np.linalg.solve(s, h @ covariance).T
            mean = mean + k @ (np.array(targets) - h @ mean)
            covariance = covariance - k @ h @ covariance
        shape = (steps, self.latent)
        return mean.reshape(shape), covariance.reshape(*shape, *shape)

    def marginals(self, data: Sequences, sequence: int, **given) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance (T, latent) of each state."""
        mean, covariance = self.posterior(data, sequence, **given)
        return mean, np.einsum("tdtd->td", covariance)

    def filtered(
        self, data: Sequences, sequence: int, *, backward: bool, names: list[str] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance (T, latent) of each state given its past (or future) and present."""
        steps = int(data.lengths[sequence])
        means, variances = np.zeros((2, steps, self.latent))
        for t in range(steps):
            span = {"first": t} if backward else {"last": t + 1}
            mean, variance = self.marginals(data, sequence, names=names, **span)
            means[t], variances[t] = mean[t], variance[t]
        return means, variances

    def log_likelihood(self, data: Sequences, sequence: int) -> float:
        """Exact log-density of a sequence's observed entries."""
        steps = int(data.lengths[sequence])
        mean, covariance = self.joint(steps)
        rows, values, noises = self._observations(data, sequence, 0, steps, None)
        if not rows:
            return 0.0
        h = np.array(rows)
        s = h @ covariance @ h.T + np.diag(noises)
        residual = np.array(values) - h @ mean
        _, log_determinant = np.linalg.slogdet(s)
        quadratic = residual @ np.linalg.solve(s, residual)
        return -0.5 * float(log_determinant + quadratic + len(values) * np.log(2 * np.pi))

    def _observations(
        self, data: Sequences, sequence: int, first: int, last: int, names: list[str] | None
    ) -> tuple[list[np.ndarray], list[float], list[float]]:
        """Rows of the observation matrix, centred values and noise variances."""
        rows, values, noises = [], [], []
        size = int(data.lengths[sequence]) * self.latent
        for i, name in enumerate(self.names):
            if names is not None and name not in names:
                continue
            x = data.arrays(name)[sequence]
            for t in range(first, last):
                for d in range(self.latent):
                    if not np.isnan(x[t, d]):
                        row = np.zeros(size)
                        row[t * self.latent + d] = self.gain[i, d]
                        rows.append(row)
                        values.append(x[t, d] - self.offset[i, d])
                        noises.append(self.noise[i, d])
        return rows, values, noises
