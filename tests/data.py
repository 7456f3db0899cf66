"""Real recordings, where they are at hand."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("WEFT_DATA", "nowhere"))


def needs(part: str) -> pytest.MarkDecorator:
    """Skip a test unless the folder that WEFT_DATA names holds this part."""
    return pytest.mark.skipif(
        not (FOLDER / part).is_dir(),
        reason=f"needs the recordings in $WEFT_DATA/{part}, which are not here",
    )
