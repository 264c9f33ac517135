"""Headers of an HTTP answer, and what they say about its body."""

from collections.abc import Mapping

from registry.values import value_class
from router.peers.headers import DROPPED, HEARD

_SHOWN = ("content-disposition", DROPPED, HEARD)
GZIP = b"\x1f\x8b"
"""First bytes of what gzip compressed (RFC 1952 2.3.1); some servers send it without `Content-Encoding`."""

COMPRESSED = "the worker compressed its answer, which was not requested"
"""What the error says then."""

_NOTHING: Mapping[str, str] = {}
_UNKNOWN_TYPE = "application/octet-stream"


class AnswerHeaders(dict[str, str]):
    """Headers of an answer, by lower-case name. They do not change once complete: `facts` caches what was read from them."""

    facts: "HeadFacts | None" = None

    def with_worker_headers(self, added: Mapping[str, str]) -> "AnswerHeaders":
        """Return a copy with other headers added, which change none of the facts."""
        headers = AnswerHeaders(self)
        headers.update(added)
        headers.facts = facts_of(self)
        return headers


@value_class
class HeadFacts:
    """What headers say about an answer's body: its type, whether it is plain JSON, and which of them callers may see."""

    content_type: str
    json: bool
    shown: Mapping[str, str]


def facts_of(headers: AnswerHeaders) -> HeadFacts:
    """Return what the headers of an answer say about its body; the same headers are read only once."""
    facts = headers.facts
    if facts is None:
        # Names of media types have no case; their parameters, such as the boundary of parts, may have one.
        kind, semicolon, parameters = headers.get("content-type", _UNKNOWN_TYPE).partition(";")
        content_type = f"{kind.lower()}{semicolon}{parameters}"
        plain = "json" in content_type and "content-encoding" not in headers
        shown = _NOTHING
        if not headers.keys().isdisjoint(_SHOWN):
            shown = {name: headers[name] for name in _SHOWN if headers.get(name)}
        facts = headers.facts = HeadFacts(content_type, plain, shown)
    return facts


def is_encoded(headers: Mapping[str, str]) -> bool:
    """Return whether the body is compressed, or encoded otherwise; workers are asked not to do that."""
    return headers.get("content-encoding", "identity") not in ("", "identity")


NO_HEADERS = AnswerHeaders()
"""Headers of an answer that has none yet, or whose own are no longer needed."""
