"""What the command line says: sentences for people, JSON for machines, exit codes for both."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import typer

__all__ = ["spoken", "tell"]

F = TypeVar("F", bound=Callable[..., None])
FAILED, INTERRUPTED, BUG = 1, 130, 70


def tell(text: str, facts: Mapping[str, Any], as_json: bool) -> None:
    """Print a text, or the facts behind it as one line of JSON."""
    typer.echo(json.dumps(facts) if as_json else text)


def spoken(command: F) -> F:
    """Turn what goes wrong in a command into one sentence and an exit code."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            _complain("Stopped. Files written before are as they were.", INTERRUPTED)
        except OSError as error:
            _complain(_about_files(error), FAILED)
        except (ValueError, ImportError) as error:
            _complain(str(error), FAILED)
        except RuntimeError as error:
            if type(error).__module__.startswith("weft"):
                _complain(str(error), FAILED)
            _unexpected(error)
        except Exception as error:
            _unexpected(error)

    return wrapped  # type: ignore[return-value]


def _about_files(error: OSError) -> str:
    """What the system says about a file, in a sentence."""
    if error.filename is None:
        return str(error)
    reason = (error.strerror or "unknown reason").lower()
    return f"{error.filename} cannot be used: {reason}. Choose another path, or make room."


def _unexpected(error: Exception) -> None:
    if os.environ.get("WEFT_DEBUG"):
        raise error
    _complain(
        f"This should not have happened: {type(error).__name__}, {error}. Set WEFT_DEBUG=1 to see "
        "where, and please report it.",
        BUG,
    )


def _complain(sentence: str, code: int) -> None:
    one_line = " ".join(sentence.split())
    sys.stderr.write(f"weft: {one_line}\n")
    raise typer.Exit(code)
