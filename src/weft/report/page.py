"""The parts of a page: figures, tables, sections, and the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.report.style import STYLE
from weft.report.text import escape

__all__ = [
    "Key",
    "Section",
    "figure",
    "figures",
    "heading",
    "page",
    "paragraph",
    "side_by_side",
    "table",
]


@dataclass(frozen=True)
class Key:
    """An entry of a legend: what it looks like, and what it means."""

    look: str
    meaning: str


@dataclass(frozen=True)
class Section:
    """A part of the page that can be linked to; ``parts`` are HTML."""

    name: str
    title: str
    parts: Sequence[str]


def paragraph(*sentences: str) -> str:
    """Sentences of plain text."""
    return f"<p>{escape(' '.join(sentence for sentence in sentences if sentence))}</p>"


def heading(text: str) -> str:
    """A title within a section."""
    return f"<h3>{escape(text)}</h3>"


def figure(drawing: str, caption: str, keys: Sequence[Key] = ()) -> str:
    """A drawing below its caption and legend."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{legend(keys)}{drawing}</figure>"


def legend(keys: Sequence[Key]) -> str:
    """What colours and marks mean."""
    if not keys:
        return ""
    items = "".join(f'<li><i class="{key.look}"></i>{escape(key.meaning)}</li>' for key in keys)
    return f'<ul class="legend">{items}</ul>'


def figures(drawn: Sequence[str]) -> str:
    """Figures side by side, as many as there is room for."""
    return f'<div class="figures">{"".join(drawn)}</div>' if drawn else ""


def side_by_side(tables: Sequence[str]) -> str:
    """Tables in columns, where there is room."""
    return f'<div class="tables">{"".join(tables)}</div>' if tables else ""


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    remark: str = "",
    *,
    words: bool = False,
) -> str:
    """Rows of text below their column names; numbers stand to the right, words to the left."""
    named = f"<caption><b>{escape(caption)}</b> <span>{escape(remark)}</span></caption>"
    names = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    top = f"<thead><tr>{names}</tr></thead>" if head else ""
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    kind = ' class="words"' if words else ""
    return (
        f'<div class="scroll"><table{kind}>{named if caption else ""}'
        f"{top}<tbody>{body}</tbody></table></div>"
    )


def page(title: str, lead: str, sections: Sequence[Section], footer: str) -> str:
    """The whole document. It asks for nothing from elsewhere, and says so to the browser."""
    links = "".join(f'<li><a href="#{s.name}">{escape(s.title)}</a></li>' for s in sections)
    body = "".join(
        f'<section id="{s.name}"><h2>{escape(s.title)}</h2>{"".join(s.parts)}</section>'
        for s in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"/>
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>{paragraph(lead)}
<nav aria-label="Sections"><ul>{links}</ul></nav></header>
<main>
{body}
</main>
<footer>{escape(footer)}</footer>
</body>
</html>
"""
