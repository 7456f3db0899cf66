"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import typer

from weft.cli.about import info
from weft.cli.experiments import demo, reproduce
from weft.cli.fitting import fit
from weft.cli.verbs import VERBS

__all__ = ["app"]

app = typer.Typer(
    help="Incomplete multimodal time series, woven into one latent state.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (fit, *VERBS, info, demo):
    app.command()(command)
app.add_typer(reproduce, name="reproduce")
