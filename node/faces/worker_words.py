"""Words of a worker's refusal for people, whichever of the usual shapes it has."""

MAX_FAULTS = 16
"""Faults of one refusal that are told, and steps of the way to the place of each."""


def words_of(said: object, depth: int = 4) -> str:
    """Return what a worker's refusal says to people, whichever of the usual shapes it has; nothing where it has none."""
    match said:
        case str(text):
            return text.strip()
        case list(several) if depth:
            found = (words_of(one, depth - 1) for one in several[:MAX_FAULTS])
            return "; ".join(text for text in found if text)
        # FastAPI's, of which each names the place in the request.
        case {"msg": str(text), "loc": place}:
            return ": ".join(filter(None, (place_of(place), text)))
        case dict(fields) if depth:
            named = (fields.get(name) for name in ("error", "message", "detail", "errors", "msg"))
            return next(filter(None, (words_of(one, depth - 1) for one in named)), "")
    return ""


def place_of(given: object) -> str:
    """Return the place of a fault, as its steps from the body on."""
    steps = [str(step) for step in given[:MAX_FAULTS]] if isinstance(given, list) else []
    return ".".join(steps[1:] if steps[:1] == ["body"] else steps)
