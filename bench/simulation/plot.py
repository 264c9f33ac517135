"""How do figures grow with the number of nodes? Lines over two logarithmic axes, as SVG written by hand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 90, 190, 48, 56
COLOURS = ("#1b4f8a", "#c2571a", "#2c7a4b", "#8a1b5c", "#6b6b6b")


@dataclass(frozen=True, slots=True)
class Line:
    """One row of values, one for each place on the horizontal axis."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis between two values, on so many pixels."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)


def draw(title: str, places: Sequence[float], lines: Sequence[Line], across: str, up: str) -> str:
    """Draw lines over `places`; values that are not positive and finite are left out."""
    shown = [value for line in lines for value in line.values if 0 < value < math.inf]
    low, high = 10 ** math.floor(math.log10(min(shown))), 10 ** math.ceil(math.log10(max(shown)))
    x = _Axis(min(places), max(places), LEFT, WIDTH - RIGHT)
    y = _Axis(low, high if high > low else low * 10, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 24, title, size=15),
        *_grid(x, y, places),
        _text((x.begin + x.end) / 2, HEIGHT - 14, across, anchor="middle"),
        f'<g transform="translate(20 {HEIGHT / 2}) rotate(-90)">{_text(0, 0, up, anchor="middle")}</g>',
    ]
    for line, colour in zip(lines, COLOURS, strict=False):
        parts += _curve(x, y, places, line, colour)
    return "\n".join([*parts, *_labels(x, y, lines), "</svg>", ""])


def _labels(x: _Axis, y: _Axis, lines: Sequence[Line]) -> list[str]:
    """Name each line at its end, in the order of the ends; a name that would lie on another goes below it."""
    ends = [
        (y.at(last), line.name, colour)
        for line, colour in zip(lines, COLOURS, strict=False)
        if 0 < (last := line.values[-1]) < math.inf
    ]
    parts, free = [], 0.0
    for end, name, colour in sorted(ends):
        at = max(end + 4, free)
        free = at + 15
        parts.append(_text(x.end + 10, at, name, colour=colour))
    return parts


def _grid(x: _Axis, y: _Axis, places: Sequence[float]) -> list[str]:
    parts = []
    decades = range(round(math.log10(y.low)), round(math.log10(y.high)) + 1)
    between = (1, 2, 5) if len(decades) <= 3 else (1,)
    for value in (step * 10.0**decade for decade in decades for step in between):
        if value <= y.high * 1.001:
            at = y.at(value)
            parts.append(_stroke(x.begin, at, x.end, at, "#dddddd"))
            parts.append(_text(x.begin - 8, at + 4, _short(value), anchor="end"))
    for place in places:
        at = x.at(place)
        parts.append(_stroke(at, y.begin, at, y.begin + 5, "#555555"))
        parts.append(_text(at, y.begin + 20, _short(place), anchor="middle"))
    parts.append(_stroke(x.begin, y.begin, x.end, y.begin, "#555555"))
    parts.append(_stroke(x.begin, y.begin, x.begin, y.end, "#555555"))
    return parts


def _curve(x: _Axis, y: _Axis, places: Sequence[float], line: Line, colour: str) -> list[str]:
    points = [
        (x.at(place), y.at(value))
        for place, value in zip(places, line.values, strict=True)
        if 0 < value < math.inf
    ]
    if not points:
        return []
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    dots = [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *dots,
    ]


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#222222", size: int = 12
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">'
        f"{escape(text)}</text>"
    )


def _short(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g} M"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
