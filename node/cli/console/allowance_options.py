"""Options for what a key or a grant allows: models, limits, and a low priority."""

import argparse
from collections.abc import Mapping
from types import MappingProxyType

from node.cli.console.options import whole_number

LIMITS: Mapping[str, str] = MappingProxyType(
    {
        "rpm": "requests a minute, evenly spread",
        "tpm": "input and output tokens a minute",
        "tokens_per_day": "tokens a UTC day",
        "concurrency": "concurrent requests",
    }
)
"""Limits of a key or a grant: whole numbers, 0 for none."""


MAX_RATE = 1_000_000_000
"""That of `node.auth.keys`, whose import would slow every --help down; a test compares them."""


def patterns_in(text: str) -> list[str]:
    """Return the patterns of models in a text, separated by commas or spaces."""
    return text.replace(",", " ").split()


def _patterns(text: str) -> list[str]:
    found = patterns_in(text)
    if not found:  # it must not mean all models
        raise argparse.ArgumentTypeError(f"{text!r} names no models")
    return found


def add_allowance(parser: argparse.ArgumentParser) -> None:
    """Declare the options for what a key or a grant allows."""
    add = parser.add_argument
    add(
        "--models",
        metavar="PATTERN",
        type=_patterns,
        action="extend",
        default=[],
        help="allowed models, repeatable: 'llama*', 'PROJECT/*', 'llama*,qwen*' (default: all)",
    )
    number = whole_number(0, MAX_RATE)
    for name, text in LIMITS.items():
        flag = f"--{name.replace('_', '-')}"
        add(flag, metavar="N", type=number, default=0, help=f"{text} (default: no limit)")
    add("--background", action="store_true", help="run its requests after all others")
