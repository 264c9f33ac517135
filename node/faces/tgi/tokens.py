"""Tokens of a text in TGI's form, each with the place where it stands: of what workers tell, where that makes up the text."""

from collections.abc import Callable, Mapping, Sequence

import orjson

from router.errors import WorkerFailed, WorkerUnable

PIECES: Mapping[str, object] = {"with_pieces": True, "return_token_strs": True}
"""How llama.cpp and vLLM are asked for the text of each token, which other workers refuse."""

_MOST_ID = 2**32 - 1
_SHOWN = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN]
_LETTERS: Mapping[str, bytes] = {
    **{chr(byte): bytes([byte]) for byte in _SHOWN},
    **{chr(0x100 + at): bytes([byte]) for at, byte in enumerate(_HIDDEN)},
}


def fields_of(given: Mapping[str, object], inputs: str) -> dict[str, object]:
    """Return the fields of a request for the tokens of a text; TGI counts those that frame it, unless it is told not to."""
    return {
        "content": inputs,
        "add_special_tokens": given.get("add_special_tokens") is not False,
    }


def tokens(body: bytes, inputs: str) -> list[dict[str, object]]:
    """Return TGI's tokens; raise `WorkerUnable` where their places cannot be told, `WorkerFailed` for what is no answer."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WorkerFailed("the answer calls itself JSON and is not") from error
    listed = said.get("tokens") if isinstance(said, dict) else None
    if not isinstance(listed, list):
        raise WorkerFailed("the answer lists no tokens")
    ids = [_id(token) for token in listed]
    for pieces in _spellings(listed, said.get("token_strs")):
        if len(pieces) == len(ids) and (places := _places(pieces, inputs)):
            return [{"id": id_, **place} for id_, place in zip(ids, places, strict=True)]
    raise WorkerUnable("the worker does not tell where its tokens stand", param="inputs")


def _spellings(listed: Sequence[object], strings: object) -> list[list[bytes]]:
    """Return what the pieces may be: as they are, or in the two ways in which tokenizers write bytes that do not show."""
    if not isinstance(strings, list) or len(strings) != len(listed):
        return [[piece for token in listed if (piece := _piece(token)) is not None]]
    texts = [text for text in strings if isinstance(text, str)]
    spelt: tuple[Callable[[str], bytes], ...] = (str.encode, _sentencepiece, _byte_level)
    return [list(map(spelling, texts)) for spelling in spelt]


def _sentencepiece(text: str) -> bytes:
    return text.replace("\u2581", " ").encode()


def _byte_level(text: str) -> bytes:
    """Read GPT-2's alphabet, in which each byte that does not show is a letter from U+0100 on."""
    return b"".join(_LETTERS.get(letter) or letter.encode() for letter in text)


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
    whole, at = inputs.encode(errors="replace"), 0
    places: list[dict[str, object]] = []
    for piece in _without_space_before(pieces, whole):
        framing = not whole.startswith(piece, at)
        if framing and at not in (0, len(whole)):
            return []
        start, at = at, at if framing else at + len(piece)
        first, last = _characters(whole[:start]), _characters(whole[:at])
        # Of a character that several tokens share, the first has it all.
        text = piece.decode(errors="replace") if framing else inputs[first:last]
        places.append({"text": text, "start": first, "stop": last})
    return places if at == len(whole) else []


def _without_space_before(pieces: list[bytes], whole: bytes) -> list[bytes]:
    """Leave out the space that some tokenizers put before a text."""
    for at, piece in enumerate(pieces):
        if piece.startswith(b" ") and len(piece) > 1 and whole.startswith(piece[1:]):
            return [*pieces[:at], piece[1:], *pieces[at + 1 :]]
        if whole.startswith(piece):
            break
    return pieces


def _characters(text: bytes) -> int:
    """Count the characters that begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in text)
