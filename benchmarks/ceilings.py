"""How well can single frames of an unseen person be rebuilt? `python -m benchmarks.ceilings`.

Structural similarity, on the close-up clips of one person, of answers that know nothing of time:
the mean frame of all other persons' clips; each clip's own mean frame; a projection on the
principal components of the others' frames; an autoencoder of the model's own networks. They say how
much of a similarity is the wall behind the person. Reads the folder that WEFT_DATA names.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.spirals import ROOT, commit
from weft.experiments.runner import write_json
from weft.experiments.tasks import structural_similarity
from weft.experiments.weizmann_fits import WeizmannJob, clips_of
from weft.networks import ImageDecoder, ImageFeatures

OUT = ROOT / "results" / "ceilings.json"
SIDE, MOVED, RANKS = 64, 3, (64, 256)
STEPS, BATCH, RATE = 4000, 64, 1e-3


def frames(data: Path, tested: str) -> tuple[Tensor, list[Tensor]]:
    """All frames of the other persons, and the tested one's clips."""
    others, mine = clips_of(WeizmannJob("w36", "bfvi", 0, data, data, tested=tested))
    videos = [torch.from_numpy(video).float() for video in mine.arrays("video")]
    return torch.from_numpy(others.columns["video"].values).float(), videos


def moved(images: Tensor, generator: torch.Generator) -> Tensor:
    """Move each image by a few pixels; what enters at an edge repeats it."""
    wide = F.pad(images, (MOVED,) * 4, mode="replicate")
    corners = torch.randint(2 * MOVED + 1, (len(images), 2), generator=generator).tolist()
    return torch.stack(
        [
            image[:, top : top + SIDE, left : left + SIDE]
            for image, (top, left) in zip(wide, corners, strict=True)
        ]
    )


def project(images: Tensor, mean: Tensor, components: Tensor) -> Tensor:
    """Project frames on principal components ``(pixels, rank)``."""
    rows = (images.flatten(1) - mean) @ components
    return (rows @ components.T + mean).clamp(0, 1).reshape(images.shape)


class Autoencoder(nn.Module):
    """The model's image networks with a plain vector between them."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.features = ImageFeatures(3, SIDE)
        self.code = nn.LazyLinear(latent)
        self.decoder = ImageDecoder(latent, 3, SIDE)

    def forward(self, images: Tensor) -> Tensor:
        """Rebuild images, as logits."""
        raw: Tensor = self.decoder(self.code(self.features(images)))
        return raw.reshape(images.shape)

    def rebuild(self, images: Tensor) -> Tensor:
        """Rebuild images."""
        return self(images).sigmoid()


def train_autoencoder(images: Tensor, latent: int, generator: torch.Generator) -> Autoencoder:
    """Minimise the cross-entropy of pixels over random moved frames."""
    torch.manual_seed(0)
    network = Autoencoder(latent)
    network(images[:2])  # makes the lazy layer
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        chosen = torch.randint(len(images), (BATCH,), generator=generator)
        batch = moved(images[chosen], generator)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(network(batch), batch, reduction="sum") / BATCH
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        schedule.step()
    return network.eval()


def main() -> None:
    """Measure and write ``results/ceilings.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tested", default="shahar")
    tested = parser.parse_args().tested
    if "WEFT_DATA" not in os.environ:
        raise SystemExit("Set WEFT_DATA to the folder of the recordings.")
    train, test = frames(Path(os.environ["WEFT_DATA"]) / "weizmann", tested)
    generator = torch.Generator().manual_seed(0)
    many = torch.cat([train, *(moved(train, generator) for _ in range(2))]).flatten(1)
    mean = many.mean(0)
    components = torch.pca_lowrank(many - mean, max(RANKS), niter=3)[2]
    network = train_autoencoder(train, max(RANKS), generator)
    answers = {
        "mean of the others": lambda clip: train.mean(0).expand_as(clip),
        "mean of the clip": lambda clip: clip.mean(0).expand_as(clip),
        **{
            f"{rank} principal components": partial(
                project, mean=mean, components=components[:, :rank]
            )
            for rank in RANKS
        },
        f"autoencoder of {max(RANKS)}": network.rebuild,
    }
    found = {}
    with torch.no_grad():
        for name, answer in answers.items():
            scores = [structural_similarity(answer(clip), clip).mean() for clip in test]
            found[name] = float(torch.stack(scores).mean())
            print(f"{name}: {found[name]:.3f}")
    write_json(OUT, {"commit": commit(), "tested": tested, "similarity": found})


if __name__ == "__main__":
    main()
