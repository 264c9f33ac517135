"""Command-line options that several commands share to describe a worker beyond its name and address.

Also the line that shows what a worker reports of itself, made from a row of the node's answer.
"""

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NEAR_FILE = re.compile(r"(|[!-~]* )@([^/].*)")
"""A header's value that names a file by a relative path, as in `router.worker_headers`."""

MOST_SHOWN = 10
"""Names of models in one line."""


def told(row: Mapping[str, Any]) -> str:
    """Return a line such as `llama.cpp b6789; 4,096 tokens; takes text, image; 4 slots`, empty for a silent worker."""
    parts = [str(row.get("software") or "")]
    if context := row.get("context"):
        parts.append(f"{context:,} tokens")
    if inputs := row.get("input_modalities"):
        parts.append(f"takes {', '.join(map(str, inputs))}")
    if outputs := [
        modality for modality in row.get("output_modalities") or () if modality != "text"
    ]:
        parts.append(f"gives {', '.join(map(str, outputs))}")
    if row.get("tools"):
        parts.append("calls tools")
    if slots := row.get("slots"):
        parts.append(f"{slots} slots")
    if fault := row.get("fault"):
        parts.append(str(fault))
    return "; ".join(filter(None, parts))


def unnamed(row: Mapping[str, Any], name: str) -> str:
    """Return a note if a worker of several models does not list one of this name; an empty text otherwise."""
    models = [str(model) for model in row.get("models") or ()]
    if len(models) < 2 or name in models or f"{name}:latest" in models:
        return ""
    return f"; but does not list {name!r}; its models: {', '.join(models[:MOST_SHOWN])}"


# The names of `registry.records.ModelType`, `router.worker_description.MODALITIES` and `router.workers.Template`, whose
# import would slow every --help down; a test compares them.
TYPES = (
    "text", "image", "image-edit", "embedding", "transcription", "speech", "rerank", "sound", "store",
    "batch", "fine-tuning", "reward", "synthetic", "vectors", "memory", "agents",
)  # fmt: skip
MODALITIES = ("text", "image", "audio", "video")
TEMPLATES = ("worker", "chatml", "llama3", "plain")


def add_type(
    parser: argparse.ArgumentParser, *, default: int | None = 0, means: str = TYPES[0]
) -> None:
    """Declare `--type`, the kind of the model."""
    parser.add_argument(
        "--type",
        metavar="T",
        type=_type,
        default=default,
        help=f"{', '.join(TYPES)}, or its number, 0 to {len(TYPES) - 1} (default: {means})",
    )


def add_asking(parser: argparse.ArgumentParser) -> None:
    """Declare the options for requests to the worker."""
    add = parser.add_argument
    add(
        "--capacity",
        "--max-concurrency",
        metavar="N",
        type=_count,
        default=0,
        help="concurrent requests that the worker accepts (default: learned from its answers)",
    )
    add(
        "--context",
        metavar="N",
        type=_count,
        default=0,
        help="maximum number of tokens of one request and its answer (default: reported by the worker)",
    )
    add(
        "--takes",
        metavar="WORDS",
        type=_words,
        default=[],
        help=f"input modalities, of {', '.join(MODALITIES)} (default: reported by the worker)",
    )
    add(
        "--template",
        metavar="T",
        choices=TEMPLATES,
        default="",
        help=f"chat template for workers that expect one text: {', '.join(TEMPLATES)} (default: depends on the protocol)",
    )
    add_header(parser)
    add(
        "--load",
        metavar="KEY=VALUE",
        type=json_or_text,
        action="append",
        default=[],
        help="option for loading the model, if the protocol supports it; VALUE is JSON or text; repeatable",
    )


def add_header(parser: argparse.ArgumentParser) -> None:
    """Declare `--header`, which the worker gets with every request."""
    parser.add_argument(
        "--header",
        metavar="'NAME: VALUE'",
        type=_header,
        action="append",
        default=[],
        help="sent to the worker with every request; a VALUE may end in @FILE, such as @/run/secrets/key; repeatable",
    )


def asked(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the options that were given, by the API's names."""
    fields = {
        "capacity": arguments.capacity,
        "context": arguments.context,
        "input_modalities": arguments.takes,
        "template": arguments.template,
        "headers": dict(arguments.header),
        "load": dict(arguments.load),
    }
    return {name: value for name, value in fields.items() if value}


def _type(text: str) -> int:
    if text.isdigit() and int(text) < len(TYPES):
        return int(text)
    if text in TYPES:
        return TYPES.index(text)
    raise argparse.ArgumentTypeError(
        f"{text!r} is none of {', '.join(TYPES)}, nor a number from 0 to {len(TYPES) - 1}"
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def _words(text: str) -> list[str]:
    modalities = [modality.strip() for modality in text.split(",")]
    if not set(modalities) <= set(MODALITIES):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of {', '.join(MODALITIES)}")
    return modalities


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not value.strip():
        # The text may be a key, and this message may be logged, so it is left out.
        raise argparse.ArgumentTypeError("a header looks like 'name: value'")
    value = value.strip()
    if match := _NEAR_FILE.fullmatch(value):
        # The node, which has another working directory, takes only absolute paths for files.
        value = f"{match[1]}@{Path(match[2]).absolute()}"
    return name.strip(), value


def json_or_text(text: str) -> tuple[str, object]:
    """Parse KEY=VALUE, whose value is JSON if it can be parsed as such, else text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} does not look like KEY=VALUE")
    return key, value_of(value)


def value_of(text: str) -> object:
    """Parse a text as JSON; return the text itself if it is not JSON. NaN and infinities are not JSON."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text


def _no_constant(name: str) -> object:
    raise ValueError(name)
