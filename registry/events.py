"""Events that the registry counts: each event by name; `/metrics` shows all of them, also those that have not happened yet."""

from collections import Counter
from collections.abc import Mapping

EVENTS: Mapping[str, str] = {
    "frames_in": "frames that were read",
    "frames_out": "frames that were published",
    "frames_bad": "frames that are malformed, forged, or not gossiped by their owner",
    "frames_dropped": "frames beyond those that one neighbour may hand over",
    "frames_lost_in_queue": "frames that came in faster than they were read",
    "frames_unknown": "frames of a newer version, or of a kind that is not known",
    "strangers_refused": "frames of unknown nodes beyond those that one neighbour may bring in",
    "refused": "records without a place, or of a neighbour or an author that brings too many",
    "loads_in": "loads that were believed",
    "loads_out": "loads that were published",
    "loads_dropped": "loads that say nothing new, come too often, or are of a node without a record",
    "syncs": "comparisons that were completed",
    "syncs_failed": "comparisons that broke off",
    "probes": "probes",
    "probes_failed": "probes after which a node was reached by nobody",
    "offences": "what no honest peer does: malformed, forged, not its own",
    "barred": "peers cut off for five minutes, for too many offences",
    "kept_out": "frames and questions of peers that are not let in",
    "questions_refused": "questions of a peer that asks too often, and challenges beyond those that are passed on at one time",
    "streams_refused": "questions and pipes beyond what is answered at one time, and questions that are too long",
    "connections_refused": "connections beyond those that others may open",
}
"""Every event with what it counts."""


def counted(*counts: Mapping[str, int]) -> Mapping[str, int]:
    """Add counts up; what has not happened was counted 0 times, which is something to compare with later."""
    total = Counter(dict.fromkeys(EVENTS, 0))
    for some in counts:
        # Copied at once, since the mesh counts on in its own thread.
        total.update(dict(some))
    return total
