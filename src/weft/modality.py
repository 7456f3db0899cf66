"""What one stream of observations is: its name, shape, likelihood and networks."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from weft.columns import Column, DataError, Field
from weft.likelihoods import Bernoulli, Categorical, Likelihood, Normal, Pixels
from weft.networks import (
    Embedding,
    FilmFeatures,
    GRUFeatures,
    ImageDecoder,
    ImageFeatures,
    MLPDecoder,
    MLPFeatures,
)
from weft.networks.image import SMALLEST
from weft.sequences import Sequences

__all__ = ["Modality", "infer_modalities"]


class Modality:
    """Declare one modality of a model.

    Parameters
    ----------
    name : str
        Its name in the data.
    shape : int or tuple of int
        Shape of one step; ignored for categorical modalities, which have one label per step.
    categories : int or sequence, optional
        The labels (or how many there are); makes the modality categorical.
    likelihood : Likelihood, optional
        `Normal` unless given, or `Categorical` if there are categories.
    encoder : nn.Module, optional
        Maps observations ``(rows, *shape)`` (codes ``(rows,)`` if categorical) to features
        ``(rows, features)``. If not given, convolutions over square images of `Pixels`, shape
        ``(channels, size, size)``; an embedding of categories; a perceptron over everything else.
    decoder : nn.Module, optional
        Maps latent states ``(rows, latent)`` to the likelihood's raw output ``(rows, outputs)``.
        If not given, the counterpart of the built-in encoder.
    weight : float
        Reconstruction multiplier λ of this modality in the loss.
    mask_input : bool, optional
        Whether the encoder sees which entries were observed, as extra entries behind the
        zero-filled values along their first axis. By default true for built-in encoders of
        vectors; a single number is either seen or not encoded at all, so it needs it only with
        ``context``, and images usually lack whole frames.
    context : int
        How many steps before its own the encoder sees as well, laid side by side along their first
        axis, the earliest first. For signals whose single values say little. A step at which the
        modality is missing is still not encoded.
    whole : bool
        Whether the encoder reads whole sequences instead of single steps: ``(time, batch, *input)``
        and ``(time, batch)``, true from a sequence's first to its last step to be read, to
        ``(time, batch, features)``; the built-in one has a GRU in each direction of time, over
        summaries of the frames if they are images. For offline use: what it says of a step depends
        on later ones, so that such a model smooths and forecasts, but neither filters nor follows
        streams. A step at which the modality is missing still gets nothing from it, unless
        ``gaps``.
    gaps : bool
        Whether an encoder of whole sequences speaks of steps as well at which its modality is
        missing, as long as anything else is observed before and after. It learns to from what is
        withheld in training, so let `TrainingConfig` practise gaps as long as there will be.
    skip : bool
        Whether built-in networks of numbers have a linear path around their hidden layer. Wide
        vectors are learned much faster with it; without it the networks are the paper's.
    level : bool
        Whether sequences have levels of their own: what predictions are off by where the modality
        was observed is expected elsewhere, too, entry by entry. For what stays within a sequence
        but differs from one to the next, like the wall behind a person or a patient's resting
        pulse, and has no place in a state of a few numbers. How long errors of numbers (`Normal`,
        `StudentT`) last is learned after training (`weft.errors`), and bands get narrower by what
        is known; in other likelihoods they are taken to stay throughout a sequence. Levels are
        part of predictions from whole sequences, not of filters, streams and scores, and training
        does without them.
    clock : int
        How many steps early or late, at most, the modality may be in a sequence, by a lag that
        stays throughout it; 0 if all are synchronous. For devices that are not started at the same
        moment. Lags of training sequences are found in training (`TrainingConfig`, ``align``),
        those of others by what the other modalities tell (`weft.clocks`); predictions are made for
        each modality by its own clock. Filters, streams and scores take modalities for synchronous.

    Examples
    --------
    >>> Modality("accel", 3)
    Modality('accel', shape=(3,), likelihood=Normal())
    >>> Modality("activity", categories=["walk", "run", "rest"]).likelihood
    Categorical(count=3)
    >>> Modality("video", (3, 64, 64), likelihood=Pixels()).is_image
    True
    """

    def __init__(
        self,
        name: str,
        shape: int | tuple[int, ...] = 1,
        *,
        categories: int | Sequence[Hashable] | None = None,
        likelihood: Likelihood | None = None,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        weight: float = 1.0,
        mask_input: bool | None = None,
        context: int = 0,
        whole: bool = False,
        gaps: bool = False,
        skip: bool = False,
        level: bool = False,
        clock: int = 0,
    ) -> None:
        self.name = name
        self.categories: tuple[Hashable, ...] | None = None
        self.shape: tuple[int, ...] = (shape,) if isinstance(shape, int) else tuple(shape)
        if categories is not None:
            labels = range(categories) if isinstance(categories, int) else categories
            self.categories, self.shape = tuple(labels), ()
            likelihood = likelihood or Categorical(len(self.categories))
        self.likelihood: Likelihood = likelihood or Normal()
        self.encoder = encoder
        self.decoder = decoder
        self.weight = weight
        self.context = context
        self.whole = whole
        self.gaps = gaps
        if mask_input is None:
            partial = self.size > 1 or (self.categories is None and (context > 0 or whole))
            mask_input = encoder is None and partial and (whole or not self.is_image)
        self.mask_input = mask_input
        self.skip = skip
        self.level = level
        self.clock = clock
        self._check()

    def _check(self) -> None:
        if not self.name:
            raise ValueError("A modality needs a name.")
        if any(length < 1 for length in self.shape):
            raise ValueError(f"Modality {self.name!r} has shape {self.shape}: all must be ≥ 1.")
        if self.categories is not None and len(set(self.categories)) != len(self.categories):
            raise ValueError(f"Modality {self.name!r} lists a category twice.")
        if isinstance(self.likelihood, Categorical):
            count = 0 if self.categories is None else len(self.categories)
            if self.likelihood.count != count:
                raise ValueError(
                    f"Modality {self.name!r} has a likelihood of {self.likelihood.count} "
                    f"categories but declares {count}. Declare it with categories=… alone."
                )
        elif self.categories is not None:
            raise ValueError(
                f"Modality {self.name!r} has categories, so its likelihood must be Categorical, "
                f"not {self.likelihood}."
            )
        if self.mask_input and not self.shape:
            raise ValueError(f"Modality {self.name!r} is categorical and cannot take a mask input.")
        if self.context < 0 or (self.context and self.categories is not None):
            raise ValueError(
                f"Modality {self.name!r} has context={self.context}: it is a number of steps, and "
                "0 for labels."
            )
        if self.whole and (self.categories is not None or self.context):
            raise ValueError(
                f"Modality {self.name!r} cannot have whole=True: labels are read step by step, and "
                "with context=… an encoder sees a few steps only. Give one of the two."
            )
        if self.whole and self.encoder is None and not self.mask_input:
            raise ValueError(
                f"Modality {self.name!r} has whole=True and mask_input=False: its built-in encoder "
                "would not know where a sequence has gaps. Leave mask_input out."
            )
        if self.gaps and not self.whole:
            raise ValueError(
                f"Modality {self.name!r} has gaps=True, but its encoder sees single steps and has "
                "nothing to say where they are missing. Add whole=True."
            )
        if self.skip and (self.categories is not None or self.is_image):
            raise ValueError(
                f"Modality {self.name!r} cannot have skip=True: labels and images have no linear "
                "path around their networks."
            )
        if self.level and self.categories is not None:
            raise ValueError(f"Modality {self.name!r} is categorical and cannot have level=True.")
        if self.clock < 0 or (self.clock and self.categories is not None):
            raise ValueError(
                f"Modality {self.name!r} has clock={self.clock}: it is a number of steps, and 0 "
                "for labels. If labels are early or late, give clocks to what they are of."
            )

    def __repr__(self) -> str:
        kind = f"shape={self.shape}" if self.categories is None else f"categories={self.categories}"
        return f"Modality({self.name!r}, {kind}, likelihood={self.likelihood})"

    @property
    def size(self) -> int:
        """Entries of one step."""
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """Whether its built-in networks are convolutional."""
        if not isinstance(self.likelihood, Pixels) or len(self.shape) != 3:
            return False
        return self.shape[1] == self.shape[2] >= SMALLEST

    @property
    def field(self) -> Field:
        """What the data must look like."""
        return Field(self.shape, self.likelihood.support, self.categories)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one row that the encoder receives, earlier steps and the mask included."""
        if not self.shape:
            return self.shape
        parts = (self.context + 1) * (1 + self.mask_input)
        return (parts * self.shape[0], *self.shape[1:])

    def encoder_input(self, values: Tensor, observed: Tensor) -> Tensor:
        """Lay the mask behind the values ``(…, *shape)``, if the encoder wants it."""
        if not self.mask_input:
            return values
        return torch.cat([values, observed.to(values.dtype)], -len(self.shape))

    def build_features(self, hidden: int) -> nn.Module:
        """Return the user's encoder, or make the supplement's."""
        if self.encoder is not None:
            return self.encoder
        if self.categories is not None:
            return Embedding(len(self.categories), hidden)
        if self.whole and self.is_image:
            return FilmFeatures(self.shape[0], self.shape[1], hidden)
        if self.whole:
            return GRUFeatures(self.size, hidden)
        if self.is_image:
            return ImageFeatures(self.input_shape[0], self.shape[1])
        return MLPFeatures(math.prod(self.input_shape), hidden, skip=self.skip)

    def features_width(self, features: nn.Module) -> int:
        """Width of what an encoder gives, found by showing it one empty row."""
        kind = torch.float32 if self.categories is None else torch.int64
        rows = (1, 1) if self.whole else (1,)
        read = [torch.zeros((*rows, *self.input_shape), dtype=kind)]
        if self.whole:
            read.append(torch.ones(rows, dtype=torch.bool))
        return _probe(features, read, f"The encoder of modality {self.name!r}", rows).shape[-1]

    def build_decoder(self, latent: int, hidden: int) -> nn.Module:
        """Return the user's decoder after a check of its width, or make the supplement's."""
        outputs = self.likelihood.outputs(self.shape)
        if self.decoder is None and self.is_image:
            return ImageDecoder(latent, self.shape[0], self.shape[1])
        if self.decoder is None:
            return MLPDecoder(latent, hidden, outputs, skip=self.skip)
        what = f"The decoder of modality {self.name!r}"
        found = _probe(self.decoder, [torch.zeros(1, latent)], what, (1,)).shape[1]
        if found != outputs:
            raise ValueError(
                f"{what} gives {found} numbers per step, but {self.likelihood} needs {outputs}."
            )
        return self.decoder

    def start(self, decoder: nn.Module, column: Column) -> None:
        """Let a built-in decoder of images start at each channel's mean in training data.

        Numbers are standardised instead. The mean counts one more pixel, half lit, so that a
        channel without light has a start as well.
        """
        if self.decoder is not None or not isinstance(decoder, ImageDecoder):
            return
        axes = (0, 2, 3)
        lit, seen = column.values.sum(axes, dtype=np.float64), column.observed.sum(axes)
        decoder.start(self.likelihood.link(torch.as_tensor((lit + 0.5) / (seen + 1))))


def infer_modalities(data: Sequences) -> list[Modality]:
    """Declare what data look like: labels, zeros and ones, square images from 0 to 1, numbers.

    Examples
    --------
    >>> data = Sequences.from_arrays({"pulse": [[70.0, 75.0]], "on": [[0, 1]], "who": [["a", "b"]]})
    >>> for modality in infer_modalities(data):
    ...     print(modality)
    Modality('pulse', shape=(1,), likelihood=Normal())
    Modality('on', shape=(1,), likelihood=Bernoulli())
    Modality('who', categories=('a', 'b'), likelihood=Categorical(count=2))
    """
    declared = []
    for name, column in data.columns.items():
        seen = column.values[column.observed]
        if not len(seen):
            raise DataError(
                f"Modality {name!r} is missing everywhere, so nothing can be learned of it. Leave "
                "it out."
            )
        if column.categories is not None:
            if len(column.categories) < 2:
                raise DataError(
                    f"Modality {name!r} has only the label {column.categories[0]!r}, so nothing "
                    "can be learned of it. Leave it out, or name all its categories."
                )
            declared.append(Modality(name, categories=column.categories))
            continue
        image = Modality(name, column.shape, likelihood=Pixels())
        likelihood: Likelihood = Normal()
        if image.is_image and seen.min() >= 0 and seen.max() <= 1:
            likelihood = Pixels()
        elif ((seen == 0) | (seen == 1)).all():
            likelihood = Bernoulli()
        declared.append(Modality(name, column.shape, likelihood=likelihood))
    return declared


def _probe(module: nn.Module, read: Sequence[Tensor], what: str, rows: tuple[int, ...]) -> Tensor:
    """Run a module on one row, or one step of one sequence, without leaving a trace in it."""
    parameter = next(module.parameters(), None)
    if parameter is not None:
        read = [
            x.to(parameter.device, parameter.dtype if x.is_floating_point() else x.dtype)
            for x in read
        ]
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            found = module(*read)
    except RuntimeError as error:
        shape = tuple(read[0].shape)
        raise ValueError(f"{what} does not accept input of shape {shape}.") from error
    finally:
        module.train(training)
    if not isinstance(found, Tensor) or found.shape[:-1] != rows:
        axes = "rows" if len(rows) == 1 else "time, batch"
        raise ValueError(f"{what} must map ({axes}, …) to a tensor of shape ({axes}, width).")
    return found
