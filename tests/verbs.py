"""Every inference function behind one signature, to state facts about all of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from weft import BFVI, Gaussian, Modality, Sequences


def _sequence(module, batch, **options):
    return module.sequence(batch, **options).posterior[0]


VERBS: dict[str, Callable[..., Gaussian]] = {
    "forward filter": lambda module, batch, **o: module.filter(batch, **o).posterior,
    "backward filter": lambda module, batch, **o: (
        module.filter(batch, backward=True, **o).posterior
    ),
    "smooth": lambda module, batch, **o: module.smooth(batch, **o).posterior,
    "smooth forward": lambda module, batch, **o: module.smooth_forward(batch, **o).posterior,
    "sequence": _sequence,
}
MARGINALS = [name for name in VERBS if name != "sequence"]

MODALITIES = ("scalar", "vector", "label")


def declare(order=MODALITIES) -> list[Modality]:
    made = {
        "scalar": Modality("scalar"),
        "vector": Modality("vector", 3),
        "label": Modality("label", categories=["a", "b", "c"]),
    }
    return [made[name] for name in order]


def random_module(seed: int = 0, scale: float = 1.0, latent: int = 3) -> BFVI:
    """Random networks in float64; a large scale makes them wild."""
    torch.manual_seed(seed)
    module = BFVI(declare(), latent, hidden=6).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(scale).add_(0.1 * torch.randn_like(parameter))
    return module


def random_data(seed: int = 0, lengths=(7, 4, 9), missing: float = 0.4) -> Sequences:
    rng = np.random.default_rng(seed)
    scalar, vector, label = [], [], []
    for steps in lengths:
        x, v = rng.normal(size=steps), rng.normal(size=(steps, 3))
        x[rng.uniform(size=x.shape) < missing] = np.nan
        v[rng.uniform(size=v.shape) < missing] = np.nan
        kinds = rng.choice(["a", "b", "c"], steps).astype(object)
        kinds[rng.uniform(size=steps) < missing] = None
        scalar.append(x)
        vector.append(v)
        label.append(kinds)
    return Sequences.from_arrays(
        {"scalar": scalar, "vector": vector, "label": label},
        categories={"label": ["a", "b", "c"]},
    )


def assert_same_gradients(module, loss, other, *, rtol: float, atol: float) -> None:
    """Both losses have the same gradient in every parameter; none counts as zero."""
    parameters = dict(module.named_parameters())
    found, wanted = (
        torch.autograd.grad(each, list(parameters.values()), allow_unused=True)
        for each in (loss, other)
    )
    for (name, parameter), got, want in zip(parameters.items(), found, wanted, strict=True):
        nothing = torch.zeros_like(parameter)
        torch.testing.assert_close(
            nothing if got is None else got,
            nothing if want is None else want,
            rtol=rtol,
            atol=atol,
            msg=name,
        )
