"""What the documentation site needs beyond mkdocs: formulas, and files that lie outside ``docs``.

Formulas are turned into MathML when the site is built, so that pages need no script to show them.
They stand between dollar signs in pages, and below ``.. math::`` in docstrings.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree

import griffe
from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
SHOWN = (".json", ".png", ".gif")
RESULTS = [path.name for path in ROOT.glob("results/*") if path.suffix in SHOWN]
PLACES = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    **{f"results/{name}": f"results/{name}" for name in RESULTS},
}
"""Files of the site that are not in ``docs``, and where they are."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Teach Markdown formulas."""
    config.markdown_extensions.append(Formulas())  # type: ignore[arg-type]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside ``docs``."""
    for target, source in PLACES.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links at those files' places in the site."""
    for target, source in PLACES.items():
        markdown = markdown.replace(f"](../{source}", f"]({target}")
    return markdown


class Formulas(Extension):
    """``$…$`` in a line, ``$$`` around lines, and ``.. math::`` as docstrings have it."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register after code blocks are put aside, and after code in a line."""
        md.preprocessors.register(_Displayed(md), "formulas", 22)
        md.inlinePatterns.register(_Inline(r"\$(?=\S)([^$\n]+?)(?<=\S)\$", md), "formula", 185)


class _Inline(InlineProcessor):
    def handleMatch(  # type: ignore[override]  # noqa: N802
        self, m: re.Match[str], data: str
    ) -> tuple[ElementTree.Element | str, int, int]:
        placeholder = self.md.htmlStash.store(convert(m[1]))
        return placeholder, m.start(0), m.end(0)


class _Displayed(Preprocessor):
    PATTERN = re.compile(
        r"^(?P<indent> *)\$\$\n(?P<dollars>.*?)^ *\$\$$"
        r"|^\.\. math::\n(?P<directive>(?:\n|[ \t]+.*(?:\n|\Z))+)",
        re.M | re.S,
    )

    def run(self, lines: list[str]) -> list[str]:
        return self.PATTERN.sub(self._replace, "\n".join(lines)).split("\n")

    def _replace(self, found: re.Match[str]) -> str:
        latex = dedent(found["dollars"] or found["directive"]).strip()
        if "&" in latex or r"\\" in latex:
            latex = rf"\begin{{align*}} {latex} \end{{align*}}"
        formula = convert(latex, display="block")
        placeholder = self.md.htmlStash.store(f'<div class="formula">{formula}</div>')
        return f"\n\n{found['indent'] or ''}{placeholder}\n\n"


class TrueDefaults(griffe.Extension):
    """Give each of several parameters in one line of a docstring its own default."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Correct the docstring of a function and, of a constructor, that of its class."""
        described = func.parent if func.name == "__init__" else func
        if described is None or described.docstring is None:
            return
        for section in described.docstring.parsed:
            if section.kind is griffe.DocstringSectionKind.parameters:
                for parameter in section.value:
                    if parameter.name in func.parameters:
                        parameter.value = func.parameters[parameter.name].default
