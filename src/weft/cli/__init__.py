"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import typer

from weft.cli import experiments, verbs

__all__ = ["app"]

app = typer.Typer(
    help="Incomplete multimodal time series, woven into one latent state.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
verbs.register(app)
app.command()(experiments.demo)
app.add_typer(experiments.reproduce, name="reproduce")
