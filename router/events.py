"""What does the router count? Each event by name; `/metrics` shows all of them, also those that have not happened yet."""

from collections.abc import Mapping

EVENTS: Mapping[str, str] = {
    "retries_refused": "failures that were not tried elsewhere, because `router.retry_share` was spent",
}
"""Every event with what it counts."""
