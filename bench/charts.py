"""Charts by matplotlib, as SVG: bars, and lines over size or load, on logarithmic axes.

The same figures give the same bytes. Text stays text and the background is white, so a chart reads alike on light and dark pages.
"""

import argparse
import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES = (7.2, 4.2)
INCHES_OF_A_BAR = 0.3
OURS, OTHERS = "#1b4f8a", "#9aa7b4"
COLOURS = ("#1b4f8a", "#c2571a", "#2c7a4b", "#8a1b5c", "#6b6b6b")
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "modelvine",  # names within the file are random otherwise
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],
    "axes.spines.top": False,
    "axes.spines.right": False,
}
NOTHING_OF_TODAY = {"Date": None, "Creator": None, "Format": None, "Type": None}


def folder(name: str) -> Path:
    """Parse the option for the charts' folder; refuse it before anything is measured if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("charts need matplotlib: pip install -e '.[bench]'")
    return Path(name)


def draw_bars(
    file: Path, title: str, values: Mapping[str, float], *, ours: Set[str], unit: str
) -> None:
    """Draw one bar for each positive finite value, the smallest first; those of `ours` are highlighted."""
    shown = sorted((value, name) for name, value in values.items() if 0 < value < math.inf)
    with _axes(file, title, (INCHES[0], 1.2 + INCHES_OF_A_BAR * len(shown))) as axes:
        colours = [OURS if name in ours else OTHERS for _, name in shown]
        bars = axes.barh(range(len(shown)), [value for value, _ in shown], color=colours)
        axes.bar_label(bars, [_plain(float(f"{value:.3g}")) for value, _ in shown], padding=4)
        axes.set_yticks(range(len(shown)), [name for _, name in shown])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlim(left=10 ** math.floor(math.log10(shown[0][0])))
        axes.xaxis.set_major_formatter(_plain)
        axes.minorticks_off()
        axes.set_xlabel(f"{unit} (logarithmic; less is better)")


def draw_lines(
    file: Path,
    title: str,
    positions: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    *,
    across: str,
    up: str,
) -> None:
    """Draw lines over `positions`, without values that are not positive and finite."""
    with _axes(file, title, INCHES) as axes:
        for (name, values), colour in zip(lines.items(), COLOURS, strict=False):
            plotted = [value if 0 < value < math.inf else math.nan for value in values]
            axes.plot(positions, plotted, "o-", color=colour, label=name, markersize=4)
        axes.set_xscale("log" if max(positions) > 10 * min(positions) else "linear")
        axes.set_xticks(positions, [_plain(position) for position in positions])
        axes.set_xlabel(across)
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < 1000 * low:  # there is room for more ticks than one in each decade
            axes.yaxis.get_major_locator().set_params(subs=(1, 2, 3, 5))
        axes.yaxis.set_major_formatter(_plain)
        axes.minorticks_off()
        axes.set_ylabel(up)
        axes.grid(axis="y", color="#dddddd")
        # In the order in which the lines end, the highest first.
        handles, names = axes.get_legend_handles_labels()
        order = sorted(range(len(names)), key=lambda n: lines[names[n]][-1], reverse=True)
        axes.legend(
            [handles[n] for n in order],
            [names[n] for n in order],
            loc="center left",
            bbox_to_anchor=(1, 0.5),
            frameon=False,
        )


@contextmanager
def _axes(file: Path, title: str, inches: tuple[float, float]) -> Iterator["Axes"]:
    """Yield the axes of one chart, and write the file afterwards."""
    # Imported only for drawing, as it takes half a second.
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.add_subplot()
        figure.suptitle(title, x=0.01, horizontalalignment="left")
        yield axes
        figure.savefig(file, metadata=NOTHING_OF_TODAY)


def _plain(value: float, _: int | None = None) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"
