"""Into which tokens is a text cut? What workers tell, in TGI's form; with places only where the pieces make up the text."""

from collections.abc import Mapping

import orjson

from router.errors import WorkerFailed

PIECES: Mapping[str, object] = {"with_pieces": True, "return_token_strs": True}
"""How llama.cpp and vLLM are asked for the text of each token, which other workers refuse."""

_MOST_ID = 2**32 - 1


def fields_of(given: Mapping[str, object], inputs: str) -> dict[str, object]:
    """Return the fields of a request for the tokens of a text; TGI counts those that frame it, unless it is told not to."""
    return {
        "content": inputs,
        "add_special_tokens": given.get("add_special_tokens") is not False,
    }


def tokens(body: bytes, inputs: str) -> list[dict[str, object]]:
    """Return TGI's tokens; `text`, `start` and `stop` are left out where nobody tells them. Raise `WorkerFailed`."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WorkerFailed("the answer calls itself JSON and is not") from error
    listed = said.get("tokens") if isinstance(said, dict) else None
    if not isinstance(listed, list):
        raise WorkerFailed("the answer lists no tokens")
    strings = said.get("token_strs")
    ids = [_id(token) for token in listed]
    pieces = [_piece(token) for token in listed]
    if isinstance(strings, list) and len(strings) == len(ids):
        pieces = [text.encode() if isinstance(text, str) else None for text in strings]
    told = [piece for piece in pieces if piece is not None]
    places = _places(told, inputs) if len(told) == len(ids) else []
    if not places:
        return [{"id": id_} for id_ in ids]
    return [{"id": id_, **place} for id_, place in zip(ids, places, strict=True)]


def _id(token: object) -> int:
    match token:
        case {"id": int(id_)} | int(id_) if not isinstance(id_, bool) and 0 <= id_ <= _MOST_ID:
            return id_
    raise WorkerFailed("a token of the answer has no id")


def _piece(token: object) -> bytes | None:
    match token:
        case {"piece": str(text)} | {"text": str(text)}:
            return text.encode()
        # Half of a character is told as bytes.
        case {"piece": [*numbers]} if all(isinstance(n, int) and 0 <= n < 256 for n in numbers):
            return bytes(numbers)
    return None


def _places(pieces: list[bytes], inputs: str) -> list[dict[str, object]]:
    """Return where in a text its pieces stand, in characters; nothing where they do not make it up."""
    whole, at = inputs.encode(), 0
    places: list[dict[str, object]] = []
    for piece in pieces:
        framing = not whole.startswith(piece, at)
        if framing and at not in (0, len(whole)):
            return []
        start, at = at, at if framing else at + len(piece)
        first, last = _characters(whole[:start]), _characters(whole[:at])
        # Of a character that several tokens share, the first has it all.
        text = piece.decode(errors="replace") if framing else inputs[first:last]
        places.append({"text": text, "start": first, "stop": last})
    return places if at == len(whole) else []


def _characters(text: bytes) -> int:
    """Count the characters that begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in text)
