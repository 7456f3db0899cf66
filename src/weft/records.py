"""How a fitted model is written down: JSON for what it is, safetensors for its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft import likelihoods
from weft.clocks import Clock
from weft.errors import Errors, Views
from weft.frames import Roles
from weft.inference import METHODS, Method
from weft.likelihoods import Likelihood
from weft.modality import Modality
from weft.particles import Antithetic, Cubature, MonteCarlo, Particles
from weft.persistence import FileError, digest, read_file, write_file
from weft.scaling import Scale, Scaling

__all__ = ["ModelRecord", "Usage", "fingerprint", "read_model", "write_model"]

KIND = "model"


@dataclass(frozen=True, eq=False)
class ModelRecord:
    """What a model file holds."""

    inference: str
    modalities: tuple[Modality, ...]
    latent: int
    hidden: int
    scaling: Scaling
    weights: dict[str, Tensor]
    usage: Usage


@dataclass(frozen=True)
class Usage:
    """How a model is used, which its weights do not say.

    ``particles`` and ``refine`` are settings of inference, ``roles`` say how its table was read if
    there was one, ``errors`` how long errors of each modality with levels last, ``clocks`` how far
    modalities with clocks of their own are off.
    """

    particles: Particles = Cubature()
    refine: int = 0
    roles: Roles | None = None
    errors: Mapping[str, Views] = field(default_factory=dict)
    clocks: Mapping[str, Clock] = field(default_factory=dict)


def write_model(
    path: Path, module: Method, scaling: Scaling, modalities: Sequence[Modality], usage: Usage
) -> None:
    """Write a fitted module to one file."""
    header, tensors = _contents(module, scaling, modalities)
    more = {
        "table": None if usage.roles is None else asdict(usage.roles),
        "refine": usage.refine,
        "particles": {"class": type(usage.particles).__name__, "settings": vars(usage.particles)},
        "errors": {name: _listed(views) for name, views in usage.errors.items()},
        "clocks": {
            name: {"chances": clock.chances.tolist(), "lasting": clock.lasting}
            for name, clock in usage.clocks.items()
        },
    }
    write_file(path, KIND, {**header, **more}, tensors)


def fingerprint(module: Method, scaling: Scaling, modalities: Sequence[Modality]) -> str:
    """Digest of all that a model file would hold: equal for equal models."""
    header, tensors = _contents(module, scaling, modalities)
    return digest(json.dumps(header, sort_keys=True), tensors)


def _contents(
    module: Method, scaling: Scaling, modalities: Sequence[Modality]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a model file."""
    header = {
        "inference": module.name,
        "latent": module.model.latent,
        "hidden": module.model.hidden,
        "modalities": [_describe(modality) for modality in modalities],
    }
    tensors = {f"weights/{name}": tensor for name, tensor in module.state_dict().items()}
    for name, scale in scaling.scales.items():
        tensors[f"shift/{name}"] = torch.as_tensor(scale.shift)
        tensors[f"scale/{name}"] = torch.as_tensor(scale.scale)
    return header, tensors


def read_model(path: Path, declared: Sequence[Modality] | None) -> ModelRecord:
    """Read a model file; ``declared`` modalities bring the user's own networks back."""
    stored = read_file(path, KIND)
    inference = stored.header.get("inference", "bfvi")  # files were once of one method only
    if inference not in METHODS:
        raise FileError(
            f"{path} was saved with the inference method {inference!r}, which this version does "
            f"not have; it has {', '.join(METHODS)}."
        )
    written = stored.header["modalities"]
    if declared is None:
        modalities = [_rebuild(path, record) for record in written]
    else:
        modalities = list(declared)
        _require_same(path, [_describe(modality) for modality in modalities], written)
    shifts, scales = stored.group("shift"), stored.group("scale")
    scaling = Scaling({n: Scale(shifts[n].numpy(), scales[n].numpy()) for n in shifts})
    return ModelRecord(
        inference,
        tuple(modalities),
        stored.header["latent"],
        stored.header["hidden"],
        scaling,
        stored.group("weights"),
        _usage(stored.header),
    )


def _usage(header: Mapping[str, Any]) -> Usage:
    """Settings of inference; those of the user's own making, and old files, have the default."""
    table, written = header.get("table"), header.get("particles", {})
    errors = {name: _views(settings) for name, settings in header.get("errors", {}).items()}
    clocks = {
        name: Clock(np.array(settings["chances"]), settings["lasting"])
        for name, settings in header.get("clocks", {}).items()
    }
    roles = None if table is None else Roles(**table)
    usage = Usage(refine=header.get("refine", 0), roles=roles, errors=errors, clocks=clocks)
    known = {kind.__name__: kind for kind in (Antithetic, Cubature, MonteCarlo)}
    if written.get("class") in known:
        usage = replace(usage, particles=known[written["class"]](**written["settings"]))
    return usage


def _listed(views: Views) -> dict[str, Any]:
    """Write arrays as lists."""
    everything, others = (
        {key: value.tolist() for key, value in vars(errors).items()}
        for errors in (views.everything, views.others)
    )
    return {"everything": everything, "others": others, "trust": views.trust.tolist()}


def _views(written: Mapping[str, Any]) -> Views:
    """Read what is known of errors; files once had the view from everything only."""
    if "trust" not in written:
        written = {"everything": written, "others": written, "trust": 0.0}
    everything, others = (
        Errors(**{key: np.array(value) for key, value in written[view].items()})
        for view in ("everything", "others")
    )
    return Views(everything, others, np.array(written["trust"]))


def _describe(modality: Modality) -> dict[str, Any]:
    """Write a declaration as plain values; code of the user's by its import path."""
    labels = modality.categories
    for label in labels or ():
        if not isinstance(label, str | int | float | bool):
            raise FileError(
                f"Modality {modality.name!r} has the category {label!r}, which JSON cannot hold. "
                "Use text or numbers as categories."
            )
    return {
        "name": modality.name,
        "shape": list(modality.shape),
        "categories": None if labels is None else list(labels),
        "likelihood": {
            "class": _import_path(modality.likelihood),
            "settings": asdict(modality.likelihood) if is_dataclass(modality.likelihood) else {},
        },
        "weight": modality.weight,
        "mask_input": modality.mask_input,
        "context": modality.context,
        "whole": modality.whole,
        "gaps": modality.gaps,
        "skip": modality.skip,
        "level": modality.level,
        "clock": modality.clock,
        "encoder": None if modality.encoder is None else _import_path(modality.encoder),
        "decoder": None if modality.decoder is None else _import_path(modality.decoder),
    }


def _rebuild(path: Path, record: Mapping[str, Any]) -> Modality:
    """Declare a modality again from a record that names only built-in parts."""
    for part in ("encoder", "decoder"):
        if record[part] is not None:
            raise FileError(
                f"{path} was saved with a {part} of its own for modality {record['name']!r} "
                f"({record[part]}). Pass the declarations again: load(path, modalities=[…])."
            )
    likelihood = record["likelihood"]
    known = {f"weft.likelihoods.{name}": name for name in likelihoods.__all__}
    if likelihood["class"] not in known:
        raise FileError(
            f"{path} was saved with the likelihood {likelihood['class']} for modality "
            f"{record['name']!r}, which is not weft's. Pass the declarations again: "
            "load(path, modalities=[…])."
        )
    made: Likelihood = getattr(likelihoods, known[likelihood["class"]])(**likelihood["settings"])
    return Modality(
        record["name"],
        tuple(record["shape"]) or 1,
        categories=record["categories"],
        likelihood=made,
        weight=record["weight"],
        mask_input=record["mask_input"],
        context=record.get("context", 0),
        whole=record.get("whole", False),
        gaps=record.get("gaps", False),
        skip=record.get("skip", False),
        level=record.get("level", False),
        clock=record.get("clock", 0),
    )


def _require_same(
    path: Path, declared: Sequence[Mapping[str, Any]], written: Sequence[Mapping[str, Any]]
) -> None:
    if [record["name"] for record in declared] != [record["name"] for record in written]:
        raise FileError(
            f"{path} was saved with the modalities {[r['name'] for r in written]}, but "
            f"{[r['name'] for r in declared]} were declared."
        )
    for mine, theirs in zip(declared, written, strict=True):
        for key, value in theirs.items():
            if mine[key] != value:
                raise FileError(
                    f"{path} was saved with {key} {value!r} for modality {theirs['name']!r}, but "
                    f"{mine[key]!r} was declared."
                )


def _import_path(thing: nn.Module | Likelihood) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
