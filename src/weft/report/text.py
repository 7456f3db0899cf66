"""Words and numbers as a page shows them."""

from __future__ import annotations

import html
import math
from unicodedata import east_asian_width

__all__ = [
    "breadth",
    "counted",
    "escape",
    "listed",
    "minus",
    "number",
    "percent",
    "shorten",
    "superscript",
]

FIRM = "\u00a0"  # a space at which no line breaks
WIDE = "…%@mwMW"
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def escape(text: object) -> str:
    """Text that stands for itself in HTML and SVG; what cannot be printed becomes �.

    Examples
    --------
    >>> escape("<b>")
    '&lt;b&gt;'
    """
    plain = "".join(c if c.isprintable() or c == FIRM else "�" for c in str(text))
    return html.escape(plain).replace(" %", f"{FIRM}%")


def breadth(text: str) -> float:
    """Width of a small text in a drawing; fonts differ, so rather too much."""
    return sum(12.5 if c in WIDE or east_asian_width(c) in "WF" else 7.4 for c in text)


def shorten(text: object, most: int) -> str:
    """The beginning of a text, with an ellipsis if something was left out."""
    whole = str(text)
    return whole if len(whole) <= most else whole[: most - 1] + "…"


def number(value: float, digits: int = 3) -> str:
    """A number to so many significant digits.

    Examples
    --------
    >>> [number(value) for value in (0.01234, 36.66, 12345.6, 1.5e9)]
    ['0.0123', '36.7', '12,346', '1.50×10⁹']
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if -4 <= size < 6:
        return minus(f"{value:,.{max(0, digits - 1 - size)}f}")
    return minus(f"{value / 10.0**size:.{digits - 1}f}×10{superscript(size)}")


def minus(text: str) -> str:
    """A number with a real minus sign."""
    return text.replace("-", "−")


def percent(share: float) -> str:
    """A share in percent, never rounded to nothing or to all of it."""
    if 0 < share < 0.01:
        return "<1 %"
    if 0.99 < share < 1:
        return ">99 %"
    return f"{100 * share:.0f} %"


def superscript(power: int) -> str:
    """A whole number as an exponent."""
    return str(power).translate(SUPERSCRIPT)


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count and its noun.

    Examples
    --------
    >>> counted(1, "step"), counted(1200, "step")
    ('1 step', '1,200 steps')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def listed(names: list[str]) -> str:
    """Names in a sentence.

    Examples
    --------
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
