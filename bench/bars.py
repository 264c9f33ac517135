"""How do several things compare in one figure? Bars over a logarithmic axis, as SVG written by hand."""

import math
from collections.abc import Mapping, Set
from xml.sax.saxutils import escape

WIDTH, ROW, TOP, LEFT, RIGHT = 720, 26, 56, 170, 70
OURS, OTHERS = "#1b4f8a", "#9aa7b4"


def draw(title: str, values: Mapping[str, float], *, ours: Set[str], unit: str) -> str:
    """Draw one bar for each positive value, the smallest first; those of `ours` stand out."""
    shown = sorted((value, name) for name, value in values.items() if 0 < value < math.inf)
    low = 10 ** math.floor(math.log10(shown[0][0]))
    high = shown[-1][0]
    height = TOP + ROW * len(shown) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="sans-serif" font-size="12"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, 24, title, size=15),
        _text(LEFT, 44, f"{unit}, logarithmic; less is better", colour="#555555"),
    ]
    for row, (value, name) in enumerate(shown):
        at = TOP + ROW * row
        share = math.log(value / low) / math.log(high / low)
        length = max(2.0, share * (WIDTH - LEFT - RIGHT))
        colour = OURS if name in ours else OTHERS
        parts += [
            _text(LEFT - 8, at + 15, name, anchor="end"),
            f'<rect x="{LEFT}" y="{at}" width="{length:.1f}" height="{ROW - 6}" fill="{colour}"/>',
            _text(LEFT + length + 6, at + 15, f"{value:.3g}"),
        ]
    return "\n".join([*parts, "</svg>", ""])


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#222222", size: int = 12
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
