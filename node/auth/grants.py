"""Grants: keys that a node signs, and that other sites check without asking it. A holder can pass on a narrower grant.

    mv_grant_ base64url( version  issuer  blocks                                    secret )
                         1        32      count, each: length body signature       0 or 32

Each block names the terms under which it holds, and the key that signs the next block. All blocks must hold, so a later block
only narrows. The issuer's key, which its peer id implies, signs the first block. At the end stands the secret of the key that
the last block names: its bearer may send requests, and may add a block. Without the secret a grant is *sealed*: its last block
names the one node that may show it, and over TLS only that node can. See docs/protocol.md, section 9.
"""

import hashlib
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from node.auth.errors import GrantRefused
from node.auth.keys import PREFIX, Allowance, Pattern, Rate
from registry import signing
from registry.errors import InvalidSignature
from registry.records import PeerId
from registry.wire import GRANT_CHARACTERS

GRANT_PREFIX = f"{PREFIX}grant_"
"""Prefix of every grant. A grant has the prefix of a key, so it is checked even where no key is needed."""

MAX_CHARACTERS = 6_144
"""The longest text that is read as a grant."""

MAX_BLOCKS = 5
MAX_PASSES = 3
"""Upper bound on how often a grant may be passed on."""

MAX_PATTERNS = 16
MAX_NODES = 16

_VERSION = 1
_DOMAIN = b"modelvine/1/grant\0"
_MAX_BODY_BYTES = 1_024

_Peer = Annotated[str, StringConstraints(pattern=r"^[1-9A-HJ-NP-Za-km-z]{40,64}$")]


class Terms(BaseModel):
    """Terms of one block; 0 and empty stand for no limit. A reader that does not know a term refuses the grant.

    `models`, `rpm`, `tpm`, `tokens_per_day`, `concurrency` and `background` are a key's (`node.auth.keys`). `expires` is Unix
    time. `nodes` are those at which the grant may be shown. `passes` says how many blocks may follow. `holder` is the one node
    that may show a sealed grant.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    key: Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{64})?$")] = ""
    """Raw public key that signs the next block, in hexadecimal; empty if no block may follow."""

    expires: Annotated[int, Field(ge=1, lt=2**40)]
    models: Annotated[tuple[Pattern, ...], Field(max_length=MAX_PATTERNS)] = ()
    rpm: Rate = 0
    tpm: Rate = 0
    tokens_per_day: Rate = 0
    concurrency: Rate = 0
    background: bool = False
    nodes: Annotated[tuple[_Peer, ...], Field(max_length=MAX_NODES)] = ()
    passes: Annotated[int, Field(ge=0, le=MAX_PASSES)] = 0
    holder: Annotated[str, StringConstraints(pattern=r"^(?:[1-9A-HJ-NP-Za-km-z]{40,64})?$")] = ""

    def allowance(self) -> Allowance:
        """Return the terms as a key's allowance."""
        return Allowance(**self.model_dump(include={*Allowance.model_fields}))


@dataclass(frozen=True, slots=True)
class Block:
    """Terms as they were signed."""

    terms: Terms
    body: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Grant:
    """A grant as it was read: well formed, not checked. `secret` is empty if it is sealed."""

    issuer: bytes
    blocks: tuple[Block, ...]
    secret: bytes = b""

    def __repr__(self) -> str:
        return f"Grant({self.id})"

    @property
    def id(self) -> str:
        """Id by which its issuer revokes it; grants of other issuers never have the same id."""
        return hashlib.sha256(self.issuer + self.blocks[0].body).hexdigest()[:GRANT_CHARACTERS]

    @property
    def peer(self) -> PeerId:
        """The node that issued it; raises `InvalidSignature` if the issuer's key is invalid."""
        return signing.peer_of(self.issuer)

    @property
    def expires(self) -> int:
        """Unix time at which it ends: the earliest expiry of its blocks."""
        return min(block.terms.expires for block in self.blocks)

    @property
    def narrowing(self) -> tuple[Block, ...]:
        """The blocks without the one that seals the grant."""
        return self.blocks[:-1] if self.blocks[-1].terms.holder else self.blocks


def issue(identity: signing.Identity, terms: Terms) -> Grant:
    """Sign a grant."""
    secret, key = _new_key()
    body = _body(terms.model_copy(update={"key": key.hex(), "holder": ""}))
    block = Block(_terms(body), body, identity.sign(_DOMAIN, body))
    return Grant(identity.public, (block,), secret)


def narrow(grant: Grant, terms: Terms) -> Grant:
    """Return a grant to pass on, under which `terms` hold as well; raise `GrantRefused` if it may not be passed on."""
    passes_left = grant.blocks[-1].terms.passes
    if not passes_left:
        raise GrantRefused("this grant may not be passed on")
    secret, key = _new_key()
    passes = min(terms.passes, passes_left - 1)
    narrower = terms.model_copy(update={"key": key.hex(), "holder": "", "passes": passes})
    return replace(_extended(grant, narrower), secret=secret)


def seal(grant: Grant, holder: PeerId) -> Grant:
    """Return the grant sealed for one node, without its secret."""
    return _extended(grant, Terms(expires=grant.expires, holder=holder))


def written(grant: Grant) -> str:
    """Return the text form of a grant."""
    raw = bytearray((_VERSION,)) + grant.issuer + bytes((len(grant.blocks),))
    for block in grant.blocks:
        raw += len(block.body).to_bytes(2) + block.body + block.signature
    return GRANT_PREFIX + urlsafe_b64encode(bytes(raw) + grant.secret).decode().rstrip("=")


def read(text: str) -> Grant:
    """Read a grant; raise `GrantRefused` for any other text, and for a truncated grant."""
    damaged = GrantRefused("this grant is damaged: copy it whole")
    if not text.startswith(GRANT_PREFIX) or len(text) > MAX_CHARACTERS or not text.isascii():
        raise damaged
    coded = text.removeprefix(GRANT_PREFIX)
    try:
        raw = urlsafe_b64decode(coded + "=" * (-len(coded) % 4))
    except (Base64Error, ValueError):
        raise damaged from None
    # A grant has one spelling only; the decoder alone would skip characters that are not base64.
    if urlsafe_b64encode(raw).decode().rstrip("=") != coded:
        raise damaged
    head = 1 + signing.KEY_BYTES
    if len(raw) <= head or raw[0] != _VERSION or not 1 <= raw[head] <= MAX_BLOCKS:
        raise damaged
    blocks, offset = [], head + 1
    for _ in range(raw[head]):
        size = int.from_bytes(raw[offset : offset + 2])
        end = offset + 2 + size + signing.SIGNATURE_BYTES
        if not 0 < size <= _MAX_BODY_BYTES or end > len(raw):
            raise damaged
        body = raw[offset + 2 : offset + 2 + size]
        blocks.append(Block(_terms(body), body, raw[offset + 2 + size : end]))
        offset = end
    secret = raw[offset:]
    if len(secret) not in {0, signing.KEY_BYTES}:
        raise damaged
    return Grant(raw[1:head], tuple(blocks), secret)


def check(grant: Grant, *, holder: PeerId | None = None) -> None:
    """Raise `GrantRefused` unless a grant's signatures match, and it belongs to its bearer, or to the node `holder`.

    The most expensive checks come last; a forged grant costs one failed signature check at most. The terms themselves, such
    as expiry and models, are not checked here.
    """
    forged = GrantRefused("the signature of this grant does not match its issuer")
    last = grant.blocks[-1].terms
    if holder is None:
        if last.holder or not grant.secret:
            raise GrantRefused("this grant is for one node only")
    elif last.holder != holder or grant.secret:
        raise GrantRefused("this grant belongs to another node")
    passes_left = MAX_BLOCKS
    for block in grant.narrowing:
        if block.terms.holder or passes_left <= 0:
            raise forged
        passes_left = min(passes_left - 1, block.terms.passes)
    if last.holder and last != Terms(expires=last.expires, holder=last.holder):
        raise forged
    try:
        signer = grant.issuer
        signing.peer_of(signer)
        for block in grant.blocks:
            _verify(signer, block.body, block.signature)
            signer = bytes.fromhex(block.terms.key)
        if not last.holder and _public(grant.secret).hex() != last.key:
            raise forged
    except InvalidSignature:
        raise forged from None


@lru_cache(maxsize=4_096)
def _verify(public: bytes, body: bytes, signature: bytes) -> None:
    """Check one signature. Valid ones are cached, so a forged grant costs at most one check of a forged signature."""
    signing.verify(public, _DOMAIN, body, signature)


def _extended(grant: Grant, terms: Terms) -> Grant:
    if not grant.secret or len(grant.blocks) >= MAX_BLOCKS:
        raise GrantRefused("this grant may not be passed on")
    body = _body(terms)
    signature = signing.Identity(grant.secret).sign(_DOMAIN, body)
    block = Block(_terms(body), body, signature)
    return Grant(grant.issuer, (*grant.blocks, block))


def _new_key() -> tuple[bytes, bytes]:
    secret = secrets.token_bytes(signing.KEY_BYTES)
    return secret, _public(secret)


@lru_cache(maxsize=256)
def _public(secret: bytes) -> bytes:
    return signing.Identity(secret).public


def _body(terms: Terms) -> bytes:
    return terms.model_dump_json(exclude_defaults=True).encode()


def _terms(body: bytes) -> Terms:
    try:
        return Terms.model_validate_json(body)
    except ValidationError:
        raise GrantRefused("this grant has unknown terms, or is damaged") from None
