"""What to fit, from flags and a TOML file; flags win."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.modality import Modality
    from weft.schedules import TrainingConfig
    from weft.sequences import Sequences

__all__ = ["Spec", "declare", "plan_training", "read_spec"]

TABLE = ("id", "time", "step", "combine", "variable", "value")
MODEL = ("latent", "hidden", "inference", "seed")
SECTIONS = ("table", "model", "modalities", "training")
DECLARED = ("columns", "categories", "likelihood", "weight", "context", "clock")
SWITCHES = ("whole", "gaps", "skip", "level")
LONG, PIECE = 400, 200


@dataclass(frozen=True)
class Spec:
    """Everything that `weft fit` needs to know beside the data."""

    table: Mapping[str, Any]
    model: Mapping[str, Any]
    modalities: Mapping[str, Mapping[str, Any]]
    training: Mapping[str, Any]

    def override(
        self,
        table: Mapping[str, Any],
        model: Mapping[str, Any],
        modalities: Sequence[str],
        training: Mapping[str, Any],
    ) -> Spec:
        """Let flags that were given win."""
        given = {name: {"columns": columns} for name, columns in map(_parse_modality, modalities)}
        return Spec(
            {**self.table, **_given(table)},
            {**self.model, **_given(model)},
            given or self.modalities,
            {**self.training, **_given(training)},
        )

    def read(self, frame: Any) -> Sequences:
        """Read a table as the spec says."""
        from weft.sequences import Sequences

        columns = {n: entry.get("columns", n) for n, entry in self.modalities.items()}
        kinds = {n: e["categories"] for n, e in self.modalities.items() if "categories" in e}
        return Sequences.from_frame(
            frame, modalities=columns or None, categories=kinds, **self.table
        )


def read_spec(path: Path | None) -> Spec:
    """Read a TOML file with the sections table, modalities, model and training."""
    if path is None:
        return Spec({}, {}, {}, {})
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. Check the path.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML ({error}).") from error
    _known(path, "section", content, SECTIONS)
    for section in content:
        if not isinstance(content[section], dict):
            raise ValueError(f"{path} has {section} = …, but [{section}] is a section.")
    _known(path, "key in [table]", content.get("table", {}), TABLE)
    _known(path, "key in [model]", content.get("model", {}), MODEL)
    modalities = {
        name: entry if isinstance(entry, dict) else {"columns": entry}
        for name, entry in content.get("modalities", {}).items()
    }
    for name, entry in modalities.items():
        _known(path, f"key of modality {name!r}", entry, DECLARED + SWITCHES)
    from weft.schedules import TrainingConfig

    settings = tuple(field.name for field in fields(TrainingConfig))
    _known(path, "key in [training]", content.get("training", {}), settings)
    return Spec(
        content.get("table", {}), content.get("model", {}), modalities, content.get("training", {})
    )


def declare(spec: Spec, data: Sequences) -> list[Modality]:
    """Declare modalities by the data's looks, but for what the spec says."""
    from weft import likelihoods
    from weft.modality import Modality, infer_modalities

    known = {
        n.lower(): getattr(likelihoods, n)
        for n in ("Normal", "StudentT", "Bernoulli", "Poisson", "Pixels")
    }
    declared = []
    for found in infer_modalities(data):
        entry = spec.modalities.get(found.name, {})
        likelihood = found.likelihood
        whole, gaps, skip, level = (bool(entry.get(switch, False)) for switch in SWITCHES)
        if "likelihood" in entry:
            if str(entry["likelihood"]).lower() not in known:
                raise ValueError(
                    f"Modality {found.name!r} wants the likelihood {entry['likelihood']!r}; there "
                    f"are {', '.join(known)}."
                )
            likelihood = known[str(entry["likelihood"]).lower()]()
        declared.append(
            Modality(
                found.name,
                found.shape,
                categories=found.categories,
                likelihood=likelihood,
                weight=float(entry.get("weight", 1.0)),
                context=int(entry.get("context", 0)),
                whole=whole,
                gaps=gaps,
                skip=skip,
                level=level,
                clock=int(entry.get("clock", 0)),
            )
        )
    return declared


def plan_training(spec: Spec, data: Sequences) -> TrainingConfig:
    """Settings that suit the data: long sequences are learned in pieces."""
    from weft.schedules import TrainingConfig

    config = TrainingConfig()
    if data.lengths.max() > LONG:
        config = replace(config, segment=PIECE)
    try:
        return replace(config, **spec.training)
    except TypeError as error:
        raise ValueError(f"The training settings are not usable ({error}).") from error


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _known(path: Path, what: str, found: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in found:
        if name not in known:
            raise ValueError(
                f"{path} has the unknown {what} {name!r}; known are {', '.join(known)}."
            )


def _parse_modality(text: str) -> tuple[str, str | list[str]]:
    name, equals, columns = text.partition("=")
    parts = [part.strip() for part in columns.split(",")]
    if not equals or not name.strip() or not all(parts):
        raise ValueError(
            f"The modality {text!r} is not of the form name=column or name=column,column,…."
        )
    return name.strip(), parts[0] if len(parts) == 1 else parts
