"""README and docs: every block of code runs as it stands, and every link leads somewhere.

Blocks of a page run in order in one empty folder. ``python`` is run; of ``console`` the lines after
``$ weft`` are, and must succeed unless ``$ echo $?`` and the code follow; ``toml`` with a title is
written to that file. ``sh`` is for installing: targets of ``make`` must exist. ``text`` right after
``python`` is what that prints, but for decimals and percentages, which depend on the machine.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

import weft
from tests.data import needs
from weft.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*) *(.*?)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """Code between fences: its language, what stands behind it, and the code."""

    language: str
    settings: str
    code: str


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(text)]


def parameters() -> list[object]:
    """Pages with code, skipped where the data they ask for are absent."""
    found: list[object] = []
    for page in PAGES:
        text = page.read_text()
        part = re.match(r"<!-- needs (\w+) -->", text)
        marks = [needs(part[1])] if part else []
        if any(block.language in ("python", "console") for block in blocks(text)):
            found.append(pytest.param(page, marks=marks, id=page.name))
    return found


def run_commands(code: str) -> None:
    """Run what stands after ``$ weft``; what else there is shows what came out."""
    joined = code.replace("\\\n", " ").splitlines()
    for i, line in enumerate(joined):
        if not line.startswith("$ weft"):
            continue
        expected = 0
        rest = [j for j in range(i + 1, len(joined)) if joined[j].startswith("$ ")]
        if rest and joined[rest[0]] == "$ echo $?":
            expected = int(joined[rest[0] + 1])
        found = CliRunner().invoke(app, shlex.split(line)[2:])
        assert found.exit_code == expected, f"{line}\n{found.output}"


def outline(text: str) -> str:
    """Words and whole numbers, without what a fit decides."""
    return " ".join(re.sub(r"-?\d+\.\d+|\d+%", "#", text).split())


@pytest.mark.parametrize("page", parameters())
def test_code_blocks_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "block"}
    printed = None
    for block in blocks(page.read_text()):
        if block.language == "text" and printed is not None:
            assert outline(block.code) == outline(printed)
        printed = None
        if block.language == "python":
            exec(compile(block.code, page.name, "exec", dont_inherit=True), names)
            printed = capsys.readouterr().out
        elif block.language == "console":
            run_commands(block.code)
        elif title := re.search(r'title="(.+?)"', block.settings):
            Path(title[1]).write_text(block.code)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for block in blocks(page.read_text()):
        assert block.language in ("python", "console", "toml", "sh", "text"), block
        assert block.language != "toml" or "title=" in block.settings, block
        if block.language == "sh":
            assert set(re.findall(r"^make ([\w-]+)", block.code, re.M)) <= targets, block


def test_commands_that_should_fail_are_seen_to_fail(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_commands("$ weft info nothing.weft\nweft: …\n$ echo $?\n1\n")
    with pytest.raises(AssertionError, match="There is no file"):
        run_commands("$ weft info nothing.weft\n")


# Links


def anchors(page: Path) -> set[str]:
    """What can be linked to on a page: headings and, in the reference, names."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ +(.*?) *$", text, re.M)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"^::: (\S+)", text, re.M))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, where nothing is"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}: no such heading"


def test_every_public_name_is_in_the_reference_once():
    listed = re.findall(r"^::: weft\.(\w+)", (ROOT / "docs" / "api.md").read_text(), re.M)
    assert sorted(listed) == sorted(weft.__all__)


def test_every_command_is_on_the_page_of_commands():
    named = set(re.findall(r"`weft ([\w-]+)", (ROOT / "docs" / "commands.md").read_text()))
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    assert set(group.commands) <= named


def test_every_page_is_in_the_menu():
    menu = re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    outside = {"changelog.md", "contributing.md"}
    assert set(menu) - outside == {page.name for page in (ROOT / "docs").glob("*.md")}
