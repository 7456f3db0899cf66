"""Imputation networks of PyPOTS (the extra ``bench``): fitted once, they fill any series.

Sizes are our choice and were not tuned. Each keeps the state that does best on validation series.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Fill", "Learn", "brits", "gp_vae", "saits"]

Array = NDArray[np.float64]
Fill = Callable[[Array], Array]
"""Fills the gaps of series ``(series, time, channel)``."""
Learn = Callable[[Array, tuple[Array, Array], int, int], Fill]
"""Learns from training series, and validation series with and without gaps, in so many passes over
batches of so many series."""


def saits(train: Array, validation: tuple[Array, Array], epochs: int, batch: int) -> Fill:
    """Self-attention (Du et al. 2023)."""
    from pypots.imputation import SAITS

    model = SAITS(
        **_common(train, epochs, batch),
        n_layers=2,
        d_model=256,
        n_heads=4,
        d_k=64,
        d_v=64,
        d_ffn=128,
        dropout=0.1,
    )
    return _fit(model, train, validation)


def brits(train: Array, validation: tuple[Array, Array], epochs: int, batch: int) -> Fill:
    """Two recurrent networks (Cao et al. 2018)."""
    from pypots.imputation import BRITS

    return _fit(BRITS(**_common(train, epochs, batch), rnn_hidden_size=108), train, validation)


def gp_vae(train: Array, validation: tuple[Array, Array], epochs: int, batch: int) -> Fill:
    """Gaussian-process variational autoencoder (Fortuin et al. 2020).

    PyPOTS 1.5 gives the same values however many draws it is asked for.
    """
    from pypots.imputation import GPVAE

    model = GPVAE(
        **_common(train, epochs, batch),
        latent_size=35,
        encoder_sizes=(128, 128),
        decoder_sizes=(256, 256),
        beta=0.2,
        length_scale=7.0,
        window_size=24,
    )
    return _fit(model, train, validation)


def _common(train: Array, epochs: int, batch: int) -> dict[str, Any]:
    torch.manual_seed(0)  # PyPOTS draws from the global generator
    return {
        "n_steps": train.shape[1],
        "n_features": train.shape[2],
        "batch_size": batch,
        "epochs": epochs,
        "device": "cpu",
        "verbose": False,
    }


def _fit(model: Any, train: Array, validation: tuple[Array, Array]) -> Fill:
    given, truth = validation
    model.fit({"X": train}, {"X": given, "X_ori": truth})
    return lambda series: model.impute({"X": series}).reshape(series.shape)
