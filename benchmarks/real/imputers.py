"""Imputation networks of PyPOTS (the extra ``bench``), as functions from splits to draws.

Sizes are our choice and were not tuned. Each keeps the state that does best on validation stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["brits", "gp_vae", "saits"]

Array = NDArray[np.float64]


def saits(train: Array, validation: tuple[Array, Array], test: Array, epochs: int) -> Array:
    """Self-attention (Du et al. 2023): one draw."""
    from pypots.imputation import SAITS

    model = SAITS(
        **_common(train, epochs),
        n_layers=2,
        d_model=256,
        n_heads=4,
        d_k=64,
        d_v=64,
        d_ffn=128,
        dropout=0.1,
    )
    found: Array = _fit(model, train, validation).impute({"X": test})
    return found[None]


def brits(train: Array, validation: tuple[Array, Array], test: Array, epochs: int) -> Array:
    """Two recurrent networks (Cao et al. 2018): one draw."""
    from pypots.imputation import BRITS

    model = BRITS(**_common(train, epochs), rnn_hidden_size=108)
    found: Array = _fit(model, train, validation).impute({"X": test})
    return found[None]


def gp_vae(train: Array, validation: tuple[Array, Array], test: Array, epochs: int) -> Array:
    """Gaussian-process variational autoencoder (Fortuin et al. 2020): one draw.

    PyPOTS 1.5 gives the same values however many draws it is asked for.
    """
    from pypots.imputation import GPVAE

    model = GPVAE(
        **_common(train, epochs),
        latent_size=35,
        encoder_sizes=(128, 128),
        decoder_sizes=(256, 256),
        beta=0.2,
        length_scale=7.0,
        window_size=24,
    )
    found: Array = _fit(model, train, validation).impute({"X": test})
    return found.reshape(1, *test.shape)


def _common(train: Array, epochs: int) -> dict[str, Any]:
    torch.manual_seed(0)  # PyPOTS draws from the global generator
    return {
        "n_steps": train.shape[1],
        "n_features": train.shape[2],
        "batch_size": 64,
        "epochs": epochs,
        "device": "cpu",
        "verbose": False,
    }


def _fit(model: Any, train: Array, validation: tuple[Array, Array]) -> Any:
    given, truth = validation
    model.fit({"X": train}, {"X": given, "X_ori": truth})
    return model
