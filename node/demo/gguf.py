"""Generator of a stand-in for a language model, for machines without a downloaded one: a tiny model with random weights.

The file follows version 3 of the GGUF format: a llama of one layer and about a hundred thousand weights. It generates readable
words in random order, ends its answers by itself, and accepts any text: its vocabulary holds every byte.
"""

import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

_TEXT = """
a about after all and any are at be bird blue branch bright but by can cloud cold come day deep down each early earth
evening every far field find first fish flower for forest from garden gentle give go grass green grow harvest has hear
high hill house how in is it its keep kind lake late leaf learn light like little long many meadow moon more morning
mountain near new night no not of old on one open or our path quiet rain river road root run sea season see seed sing
sky slow small soft some song spring star still stone story summer sun sweet that the there they this through time to
tree under until vine voice wait walk warm water we when where while wind winter with wonder word world year you young
"""

_TEMPLATE = (
    "{% for message in messages %}<turn>{{ message.role }}: {{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant:{% endif %}"
)

_MAGIC = b"GGUF"
_FORMAT = 3
_ALIGNMENT = 32

_WIDTH = 64
_INNER = 192
_HEADS = 2
_CONTEXT = 4096

# Numbers of the format: types of metadata values, of tensors (0 is float32), of tokens.
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6

# Biases of tokens: one that is never generated; one among the likelier words, so that answers have some 50 words.
_NEVER = -60.0
_ENDING = 0.8


@dataclass(frozen=True, slots=True)
class _Token:
    """One token: its text, its kind, and the bias on its logit in every prediction."""

    text: str
    kind: int
    push: float = _NEVER


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Float32 weights by row; `shape` is the format's, the length of a row first."""

    name: str
    shape: tuple[int, ...]
    weights: Sequence[float]


def write(path: Path, *, seed: int = 1) -> None:
    """Write the model to `path`, about 430 KB; the same seed gives the same bytes on every machine."""
    tokens = _vocabulary()
    tensors = list(_tensors(tokens, random.Random(seed)))  # noqa: S311 - weights, not secrets
    metadata = list(_metadata(tokens))
    head = _MAGIC + struct.pack("<IQQ", _FORMAT, len(tensors), len(metadata)) + b"".join(metadata)
    blobs = [_padded(_little_endian(tensor.weights)) for tensor in tensors]
    offsets = accumulate((len(blob) for blob in blobs), initial=0)
    described = (
        _described(tensor, offset) for tensor, offset in zip(tensors, offsets, strict=False)
    )
    path.write_bytes(_padded(head + b"".join(described)) + b"".join(blobs))


def _vocabulary() -> list[_Token]:
    return [
        _Token("<unk>", _UNKNOWN),
        _Token("<s>", _CONTROL),
        _Token("</s>", _CONTROL, _ENDING),
        _Token("<turn>", _CONTROL),
        _Token("<end>", _CONTROL),
        *(_Token(f"<0x{byte:02X}>", _BYTE) for byte in range(256)),
        *(_Token(f"▁{word}", _NORMAL, 0.0) for word in _TEXT.split()),
        *(_Token(mark, _NORMAL, 0.0) for mark in ",.?"),
    ]


def _metadata(tokens: Sequence[_Token]) -> Iterator[bytes]:
    yield _entry("general.architecture", _STRING, _text("llama"))
    yield _entry("general.name", _STRING, _text("random words"))
    for name, number in {
        "llama.vocab_size": len(tokens),
        "llama.context_length": _CONTEXT,
        "llama.embedding_length": _WIDTH,
        "llama.block_count": 1,
        "llama.feed_forward_length": _INNER,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _HEADS,
        "llama.rope.dimension_count": _WIDTH // _HEADS,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 4,
    }.items():
        yield _entry(name, _UINT32, struct.pack("<I", number))
    yield _entry("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5))
    yield _entry("tokenizer.ggml.add_bos_token", _BOOL, b"\x01")
    yield _entry("tokenizer.ggml.model", _STRING, _text("llama"))
    yield _list_entry("tokenizer.ggml.tokens", _STRING, [_text(token.text) for token in tokens])
    yield _list_entry("tokenizer.ggml.scores", _FLOAT32, [struct.pack("<f", 0.0) for _ in tokens])
    kinds = [struct.pack("<i", token.kind) for token in tokens]
    yield _list_entry("tokenizer.ggml.token_type", _INT32, kinds)
    yield _entry("tokenizer.chat_template", _STRING, _text(_TEMPLATE))


def _tensors(tokens: Sequence[_Token], rng: random.Random) -> Iterator[_Tensor]:
    """Yield random weights, except for the first number of every state.

    It is 1 in each embedding and no layer adds to it, so that the output's first column reaches every prediction. There each
    token's `push` keeps bytes and controls from being generated, and lets an answer end.
    """
    count = len(tokens)
    yield _matrix("token_embd", [(1.0, 1.0)] * count, _WIDTH, rng)
    yield _ones("output_norm")
    weights = [(token.push, 0.125 if token.kind == _NORMAL else 0.0) for token in tokens]
    yield _matrix("output", weights, _WIDTH, rng)
    plain, still = [(0.0, 0.125)] * _WIDTH, [(0.0, 0.0)] + [(0.0, 0.125)] * (_WIDTH - 1)
    yield _ones("blk.0.attn_norm")
    for name, rows, width in (
        ("attn_q", plain, _WIDTH),
        ("attn_k", plain, _WIDTH),
        ("attn_v", plain, _WIDTH),
        ("attn_output", still, _WIDTH),
        ("ffn_gate", plain[:1] * _INNER, _WIDTH),
        ("ffn_up", plain[:1] * _INNER, _WIDTH),
        ("ffn_down", still, _INNER),
    ):
        yield _matrix(f"blk.0.{name}", rows, width, rng)
    yield _ones("blk.0.ffn_norm")


def _matrix(
    name: str, rows: Sequence[tuple[float, float]], width: int, rng: random.Random
) -> _Tensor:
    """Return a matrix whose rows begin with a given number and continue at random, with a given spread."""
    weights: list[float] = []
    for first, spread in rows:
        weights.append(first)
        weights.extend(rng.uniform(-spread, spread) * 3**0.5 for _ in range(width - 1))
    return _Tensor(f"{name}.weight", (width, len(rows)), weights)


def _ones(name: str) -> _Tensor:
    return _Tensor(f"{name}.weight", (_WIDTH,), [1.0] * _WIDTH)


def _described(tensor: _Tensor, offset: int) -> bytes:
    sizes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
    return _text(tensor.name) + sizes + struct.pack("<IQ", 0, offset)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _entry(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _list_entry(name: str, kind: int, values: Iterable[bytes]) -> bytes:
    parts = list(values)
    return _entry(name, _ARRAY, struct.pack("<IQ", kind, len(parts)) + b"".join(parts))


def _little_endian(weights: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(weights)}f", *weights)


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % _ALIGNMENT)
