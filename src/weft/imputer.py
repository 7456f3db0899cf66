"""Imputation as scikit-learn knows it: ``fit`` and ``transform``, in a pipeline if need be."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from weft.columns import Array, DataError
from weft.estimator import MDMM
from weft.frames import Combine, Step
from weft.modality import infer_modalities
from weft.schedules import TrainingConfig
from weft.sequences import Sequences

try:
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError(
        "Imputation in scikit-learn's pipelines needs scikit-learn: pip install 'weft[sklearn]'."
    ) from error

__all__ = ["Imputer"]


class Imputer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fill the gaps of time series: rows are steps, columns are streams.

    Tables come back as tables of the same library, with the same rows, index and columns. Arrays
    ``(row, column)`` come back as arrays; their rows are one sequence, in order. Columns of numbers
    have levels (`Modality`): what predictions are off by around a gap is expected in it, too.

    Parameters
    ----------
    id, time, step, combine
        As in `Sequences.from_frame`; for tables only.
    latent, hidden : int
        Width of the state and of hidden layers.
    training : TrainingConfig, optional
        How to train; by default as `MDMM.fit` does.
    samples, seed : int
        Trajectories behind every filled value; same seed, same numbers.

    Attributes
    ----------
    model_ : MDMM
        The fitted model, for everything else it can do.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> series = np.sin(np.arange(30)[:, None] / 3 + np.array([0.0, 1.0]))
    >>> holes = np.where(rng.random(series.shape) < 0.3, np.nan, series)
    >>> filled = Imputer(latent=2, hidden=4, training=TrainingConfig(epochs=2)).fit_transform(holes)
    >>> filled.shape, bool(np.isnan(filled).any())
    ((30, 2), False)
    """

    def __init__(
        self,
        *,
        id: str | None = None,
        time: str | None = None,
        step: Step | None = None,
        combine: Combine = "mean",
        latent: int = 16,
        hidden: int = 64,
        training: TrainingConfig | None = None,
        samples: int = 100,
        seed: int = 0,
    ) -> None:
        self.id = id
        self.time = time
        self.step = step
        self.combine = combine
        self.latent = latent
        self.hidden = hidden
        self.training = training
        self.samples = samples
        self.seed = seed

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Learn from a table or an array with gaps."""
        if isinstance(X, np.ndarray):
            data = _from_array(X)
        else:
            data = Sequences.from_frame(
                X, id=self.id, time=self.time, step=self.step, combine=self.combine
            )
        modalities = infer_modalities(data)
        for modality in modalities:
            modality.level = modality.categories is None
        self.model_ = MDMM(modalities, self.latent, self.hidden)
        training = self.training or TrainingConfig()
        self.model_.fit(data, training=training, seed=self.seed, progress=False)
        self.n_features_in_ = X.shape[1]
        if not isinstance(X, np.ndarray):
            self.feature_names_in_ = np.array([str(name) for name in X.columns], object)
        return self

    def transform(self, X: Any) -> Any:  # noqa: N803
        """Fill the gaps of a table or an array like the one learned from."""
        check_is_fitted(self)
        if not isinstance(X, np.ndarray):
            data = self.model_.read(X)
            return self.model_.impute(data, samples=self.samples, seed=self.seed).to_frame()
        if X.shape[1] != self.n_features_in_:
            raise DataError(
                f"The array has {X.shape[1]} columns, but {self.n_features_in_} were learned from."
            )
        filled = self.model_.impute(_from_array(X), samples=self.samples, seed=self.seed)
        columns = [filled.padded(name)[0, :, 0] for name in filled.names]
        return np.stack(columns, 1).astype(X.dtype)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Names of the columns, which stay as they are."""
        check_is_fitted(self)
        known = getattr(self, "feature_names_in_", None)
        names = input_features if known is None else known
        if names is None:
            names = [f"x{i}" for i in range(self.n_features_in_)]
        return np.asarray(names, object)


def _from_array(values: Array) -> Sequences:
    if values.ndim != 2:
        raise DataError(f"An array of (row, column) is needed, got shape {values.shape}.")
    return Sequences.from_arrays({f"x{i}": [column] for i, column in enumerate(values.T)})
