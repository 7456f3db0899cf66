"""Every Python block in README and docs runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "block"}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        exec(compile(block, page.name, "exec", dont_inherit=True), names)
