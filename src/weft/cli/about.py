"""What is installed, and what a model is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.messages import spoken, tell
from weft.cli.options import AsJson

if TYPE_CHECKING:
    from weft.estimator import MDMM

__all__ = ["describe_scan", "info"]


@spoken
def info(
    model: Annotated[Path | None, typer.Argument(help="A model to describe.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which versions are installed and how the recursions run here, or what a model is."""
    text, facts = _about_here() if model is None else _about_model(model)
    tell(text, facts, as_json)


def describe_scan(kernels: tuple[str, ...], active: str | None) -> str:
    """One sentence on the compiled scan."""
    if active:
        return f"Compiled scan: {active} (available: {', '.join(kernels)})."
    if kernels:
        return "Compiled scan: switched off by WEFT_NATIVE; recursions run in PyTorch."
    return (
        "Compiled scan: not built when weft was installed, most often for want of a C++ compiler; "
        "recursions run in PyTorch, several times slower. Install a compiler, then install weft "
        "again."
    )


def _about_here() -> tuple[str, dict[str, Any]]:
    import platform

    import torch

    import weft
    from weft.inference import native

    facts = {
        "weft": weft.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "scan": native.active(),
        "scans": list(native.KERNELS),
    }
    lines = [
        f"weft {facts['weft']}, Python {facts['python']}, {facts['machine']}",
        f"PyTorch {facts['torch']}, {facts['threads']} threads",
        describe_scan(native.KERNELS, native.active()),
    ]
    return "\n".join(lines), facts


def _about_model(path: Path) -> tuple[str, dict[str, Any]]:
    from weft.estimator import load

    model: MDMM = load(path)
    roles = {} if model.roles is None else vars(model.roles)
    table = {name: value for name, value in roles.items() if value and name != "categories"}
    facts = {
        "model": str(path),
        "inference": model.inference,
        "latent": model.latent,
        "hidden": model.hidden,
        "parameters": sum(parameter.numel() for parameter in model.module.parameters()),
        "modalities": [str(modality) for modality in model.modalities],
        "table": table,
    }
    lines = [
        f"{path}: {model.inference}, {model.latent} latent and {model.hidden} hidden dimensions, "
        f"{facts['parameters']:,} parameters",
        *(f"  {modality}" for modality in model.modalities),
    ]
    if table:
        named = ", ".join(f"{name}={value!r}" for name, value in table.items())
        lines.append(f"Tables are read with {named}")
    return "\n".join(lines), facts
