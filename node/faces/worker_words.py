"""Extraction of the human-readable message from a worker's refusal, in any of the usual shapes."""

MAX_FAULTS = 16
"""The most faults of one refusal that are shown, and the most steps in the path of each."""


def message_in(said: object, depth: int = 4) -> str:
    """Return the human-readable message of a worker's refusal in any of the usual shapes; `""` for any other shape."""
    match said:
        case str(text):
            return text.strip()
        case list(several) if depth:
            found = (message_in(one, depth - 1) for one in several[:MAX_FAULTS])
            return "; ".join(text for text in found if text)
        # FastAPI's shape: each fault names its place in the request.
        case {"msg": str(text), "loc": place}:
            return ": ".join(filter(None, (place_of(place), text)))
        case dict(fields) if depth:
            named = (fields.get(name) for name in ("error", "message", "detail", "errors", "msg"))
            return next(filter(None, (message_in(one, depth - 1) for one in named)), "")
    return ""


def place_of(given: object) -> str:
    """Return the place of a fault as a dotted path, starting below `body`."""
    steps = [str(step) for step in given[:MAX_FAULTS]] if isinstance(given, list) else []
    return ".".join(steps[1:] if steps[:1] == ["body"] else steps)
