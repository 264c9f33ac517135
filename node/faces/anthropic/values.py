"""Checks of values in Anthropic requests: faults name their place as a caller would write it."""

from collections.abc import Iterator, Mapping

from router.errors import BadRequest


def wrong(where: str, words: str) -> BadRequest:
    """Return what is wrong at a place: `words` go on from its name."""
    return BadRequest(f"`{where}` {words}", param=where)


def mapping(fields: Mapping[str, object], name: str, where: str) -> Mapping[str, object]:
    """Read an object, an empty one where there is none."""
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(where, "must be an object")
    return value


def inside(fields: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Read an object whose fields are named as they are from outside, `metadata.user_id`."""
    return {f"{name}.{key}": value for key, value in mapping(fields, name, name).items()}


def words(fields: Mapping[str, object], name: str, where: str, *, most: int, least: int = 1) -> str:
    """Read a text that must be there, of so many characters."""
    value = fields.get(name)
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise wrong(f"{where}.{name}", f"must be a text of {least} to {most:,} characters")
    return value


def rows(given: object, where: str, most: int) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Read a list of objects, each with the place where it stands."""
    if not isinstance(given, list):
        raise wrong(where, "must be a list")
    if len(given) > most:
        raise wrong(where, f"lists at most {most:,}")
    for at, row in enumerate(given):
        if not isinstance(row, dict):
            raise wrong(f"{where}[{at}]", "must be an object")
        yield f"{where}[{at}]", row
