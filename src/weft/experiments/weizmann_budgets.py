"""What is spent on a fit of the video experiment: a model's size, and how it is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from weft.objective import ObjectiveConfig
from weft.particles import MonteCarlo, Particles
from weft.schedules import TrainingConfig
from weft.sequences import Sequences

__all__ = ["BUDGETS", "Budget"]


@dataclass(frozen=True)
class Budget:
    """A model's size and how it is trained, the same for every method.

    ``images``, ``actions`` and ``persons`` are multipliers λ. ``withhold`` is the chance that
    training withholds what is inferred at the test. ``moved`` is how many pixels images are moved
    at most in training, ``stretched`` by which share of their size they are stretched; 0 leaves
    them alone. With ``steps`` given, there are as many epochs as make so many steps, however many
    clips an experiment has. ``films`` lets the encoder of what is given at the test read whole
    films instead of single frames.
    """

    training: TrainingConfig
    objective: ObjectiveConfig
    latent: int = 256
    hidden: int = 256
    images: float = 1.0
    actions: float = 10.0
    persons: float = 10.0
    particles: Particles = MonteCarlo(25)
    withhold: float = 0.0
    moved: int = 0
    stretched: float = 0.0
    steps: int | None = None
    films: bool = False

    def weight(self, modality: str) -> float:
        """Multiplier λ of a modality."""
        return {"action": self.actions, "person": self.persons}.get(modality, self.images)

    def training_on(self, data: Sequences) -> TrainingConfig:
        """Return how to train on these clips."""
        config = self.training
        if self.steps is None or config.segment is None or config.batch_size is None:
            return config
        count = len(data.segments(config.segment))
        return replace(config, epochs=math.ceil(self.steps / math.ceil(count / config.batch_size)))


PAPER = Budget(
    TrainingConfig(
        epochs=400,
        batch_size=25,
        learning_rate=5e-4,
        warmup=0.0,
        final_rate=1.0,
        anneal=250 / 400,
        burst=0.2,
        segment=25,
        polish=0.0,
    ),
    ObjectiveConfig(each_alone=True),
)
SHORT = Budget(
    replace(
        PAPER.training,
        batch_size=16,
        segment=8,
        learning_rate=1e-3,
        warmup=0.05,
        final_rate=0.02,
        anneal=0.1,
    ),
    replace(PAPER.objective, particles=MonteCarlo(10), frames=0.5, each_alone=False),
    latent=64,
    hidden=64,
    images=10.0,
    actions=2000.0,
    persons=20.0,
    withhold=0.8,
    moved=6,
    stretched=0.15,
    steps=4000,
)
WIDE = replace(
    SHORT,
    training=replace(SHORT.training, batch_size=25, segment=4),
    objective=replace(SHORT.objective, particles=MonteCarlo(5), frames=0.6),
    latent=256,
    hidden=256,
    images=300.0,
    actions=6000.0,
    moved=3,
    stretched=0.0,
    steps=1500,
)
FILMS = replace(
    SHORT,
    training=replace(SHORT.training, batch_size=8, segment=16),
    steps=2000,
    films=True,
)
QUICK = Budget(
    replace(PAPER.training, epochs=1, batch_size=4, segment=4),
    replace(PAPER.objective, particles=MonteCarlo(2), match_particles=MonteCarlo(2)),
    latent=4,
    hidden=8,
    particles=MonteCarlo(2),
)
BUDGETS = {"paper": PAPER, "short": SHORT, "films": FILMS, "wide": WIDE, "quick": QUICK}
"""How much is spent on a fit.

``paper`` is the supplement's table. ``short`` is for two cores: a smaller state, and many small
steps of short segments that score half of the frames, of images that are moved, stretched and may
be mirrored. Instead of the losses of each modality alone, what is to be inferred at the test is
withheld at random and scored nevertheless. ``films`` is the same for encoders of whole films, in
segments twice as long and half as many steps. ``wide`` is for video: the paper's size of the state
and of a batch, still shorter segments, so that a step sees as many clips for the same number of
frames, and images that weigh more and are not stretched. ``quick`` only shows that it runs.
"""
