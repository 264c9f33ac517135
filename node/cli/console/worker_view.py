"""Line that shows what a worker says of itself: made of a row as the node tells it."""

from collections.abc import Mapping
from typing import Any

MOST_SHOWN = 10
"""Names of models in one line."""


def told(row: Mapping[str, Any]) -> str:
    """Return a line such as `llama.cpp b6789; 4,096 tokens; takes text, image; 4 at one time`."""
    parts = [str(row.get("software") or "")]
    if context := row.get("context"):
        parts.append(f"{context:,} tokens")
    if takes := row.get("input_modalities"):
        parts.append(f"takes {', '.join(map(str, takes))}")
    if gives := [word for word in row.get("output_modalities") or () if word != "text"]:
        parts.append(f"gives {', '.join(map(str, gives))}")
    if row.get("tools"):
        parts.append("calls tools")
    if slots := row.get("slots"):
        parts.append(f"{slots} at one time")
    if fault := row.get("fault"):
        parts.append(str(fault))
    return "; ".join(filter(None, parts)) or "nothing of itself"


def unnamed(row: Mapping[str, Any], name: str) -> str:
    """Say that a worker of several models names none that is called so; nothing where it does, or runs a single one."""
    models = [str(model) for model in row.get("models") or ()]
    if len(models) < 2 or name in models or f"{name}:latest" in models:
        return ""
    return f"; but names no model {name!r}; its models: {', '.join(models[:MOST_SHOWN])}"
