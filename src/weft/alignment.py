"""Sequences whose clocks are found as training goes: laid out anew for every epoch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from weft.clocks import Clock, Evidence, Readings
from weft.inference.method import Method
from weft.layouts import Inferring, hear
from weft.sequences import Sequences

__all__ = ["Alignment"]


class Alignment:
    """Sequences, and what is known of their clocks so far; nothing, before the first look.

    Parameters
    ----------
    data : Sequences
        As they were given.
    """

    def __init__(self, data: Sequences) -> None:
        self.data = data
        self.clocks: dict[str, Clock] = {}
        self.readings = Readings({})

    def look(
        self, method: Method, how: Inferring, clocks: Mapping[str, Clock] | None = None
    ) -> None:
        """Read every clock by what is inferred from the other modalities.

        How far modalities are off is learned from these sequences, unless ``clocks`` say it.
        """
        heard: dict[str, Evidence] = {
            modality.name: hear(method, modality, self.data, how)
            for modality in method.model.modalities
            if modality.clock
        }
        self.clocks = (
            {name: Clock.learn(evidence) for name, evidence in heard.items()}
            if clocks is None
            else dict(clocks)
        )
        self.readings = Readings({n: self.clocks[n].read(heard[n]) for n in heard})

    def settled(self) -> Sequences:
        """Lay sequences out by their likeliest lags."""
        return self.data.shift(self.readings.best())

    def drawn(self, generator: torch.Generator) -> Sequences:
        """Lay sequences out by lags that are drawn."""
        [lags] = self.readings.draw(1, generator)
        return self.data.shift(lags)

    def state(self) -> dict[str, Tensor]:
        """What is known, for a checkpoint."""
        found = {}
        for name, clock in self.clocks.items():
            found[f"usual/{name}"] = torch.tensor(clock.chances)
            found[f"lasting/{name}"] = torch.tensor(clock.lasting, dtype=torch.float64)
            found[f"read/{name}"] = torch.tensor(self.readings.chances[name])
        return found

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Know what a checkpoint holds."""
        names = [key.removeprefix("usual/") for key in state if key.startswith("usual/")]
        self.clocks = {
            n: Clock(state[f"usual/{n}"].numpy(), float(state[f"lasting/{n}"])) for n in names
        }
        self.readings = Readings({name: state[f"read/{name}"].numpy() for name in names})
