"""Events that the router counts: each event by name; `/metrics` shows all of them, also those that have not happened yet."""

from collections.abc import Mapping

EVENTS: Mapping[str, str] = {
    "retries_refused": "failures that were not tried elsewhere, because `router.retry_share` was spent",
    "hedged": "requests for which a second worker was asked, because the first was slower than usual (`router.hedge`)",
    "hedges_won": "those of them that the second worker answered first",
    "held": "requests that waited for a worker to be ready",
    "held_in_vain": "those of them whose `router.ready_timeout` was over first",
    "holds_refused": "requests that did not wait for a worker to be ready, because too many did",
}
"""Every event with what it counts."""
