"""Plain `nn.Module` building blocks: they know tensors, not data, models or losses."""

from weft.networks.film import FilmFeatures
from weft.networks.gru import GRUFeatures, GRUs
from weft.networks.image import ImageDecoder, ImageFeatures
from weft.networks.mlp import Embedding, GaussianHead, MLPDecoder, MLPFeatures
from weft.networks.transitions import GatedTransition

__all__ = [
    "Embedding",
    "FilmFeatures",
    "GRUFeatures",
    "GRUs",
    "GatedTransition",
    "GaussianHead",
    "ImageDecoder",
    "ImageFeatures",
    "MLPDecoder",
    "MLPFeatures",
]
