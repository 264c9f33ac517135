"""Model list for clients of Anthropic's API: the common one, with what they need besides."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from node import web

VERSION = "anthropic-version"
"""The header that all of Anthropic's clients send, and nobody else."""


def wanted(http: web.HttpRequest) -> bool:
    """Say whether a client of Anthropic's asks."""
    return VERSION in http.headers


def model(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Show one model."""
    return {
        **entry,
        "type": "model",
        "display_name": entry["id"],
        # When it was registered: nobody says when it was made.
        "created_at": f"{datetime.fromtimestamp(entry['created'], UTC):%Y-%m-%dT%H:%M:%SZ}",
        "lifecycle": "active",
        "max_input_tokens": entry.get("context_length"),
    }


def models(listing: Mapping[str, Any]) -> dict[str, Any]:
    """Show all models, on one page."""
    data = [model(entry) for entry in listing["data"]]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {**listing, "data": data, "has_more": False, "first_id": first, "last_id": last}
