"""Receipts: what this node asked of each other node and answered it, so that both can compare their sums. Never content.

Each node keeps a chain of pages for each node that it deals with. A page holds the hash of the one before, and is signed; the
last one grows for a minute. Only answers that ended well have a receipt, at both nodes, with tokens where the worker told them.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from json.encoder import encode_basestring_ascii as _quoted
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from registry.clock import Clock
from registry.errors import StoreUnavailable
from registry.signing import Identity
from registry.store import Delete, Put, Space, Store

if TYPE_CHECKING:
    from node.auth.receipt_book import ReceiptBook

log = logging.getLogger("modelvine.receipts")

PERIOD = 0.25
"""Seconds between two writes: what a node that is killed may lose."""

PAGE_ROWS = 200
PAGE_SECONDS = 60.0
"""When a page is full, and how long it grows."""

MAX_PAGES = 512
"""Pages that a node keeps, of all its chains; the oldest go first."""

NOTHING = "0" * 64
"""What the first page of a chain follows."""

DOMAIN = b"modelvine/1/receipts\0"
_DAY_MS = 86_400_000


class Side(StrEnum):
    """Which part its node had in an answer."""

    ASKED = "asked"
    SERVED = "served"


Count = Annotated[int, Field(ge=0, lt=2**53)]
Text = Annotated[str, StringConstraints(max_length=300)]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


@dataclass(slots=True)
class Receipt:
    """One answer that ended well. `at` is Unix time in milliseconds, tokens are `None` where nobody told them.

    What other nodes say is looked at by pydantic, what is written down here by nobody.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    at: Count
    request: Text
    side: Side
    model: Text
    prompt: Count | None = None
    completion: Count | None = None
    milliseconds: Count = 0

    @property
    def tokens(self) -> int:
        """How many it took, as far as it is told."""
        return (self.prompt or 0) + (self.completion or 0)

    @property
    def json(self) -> str:
        """Its text as `Page.digest` has it: many are written in a second."""
        return (
            f'{{"at":{self.at},"completion":{_number(self.completion)},"milliseconds":{self.milliseconds},'
            f'"model":{_quoted(self.model)},"prompt":{_number(self.prompt)},"request":{_quoted(self.request)},'
            f'"side":"{self.side}"}}'
        )


def _number(count: int | None) -> int | str:
    return "null" if count is None else count


class Page(BaseModel):
    """Receipts of `node` with `peer`. `before` is the hash of the page before; `signature` covers `hash`, in hexadecimal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: Text
    peer: Text
    number: Count
    before: Hash
    rows: Annotated[tuple[Receipt, ...], Field(max_length=PAGE_ROWS)]
    hash: str = ""
    signature: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]*$", max_length=128)] = ""

    def digest(self) -> str:
        """Return the hash that it should have: SHA-256 of all but hash and signature, as JSON with sorted names."""
        said = self.model_dump(exclude={"hash", "signature"})
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


_PAGES = TypeAdapter(tuple[Page, ...])


@dataclass(slots=True)
class _Chain:
    """The end of the chain of `node` with `peer`: its last page, which may still grow.

    `hash` is what it was when it was closed last; `began` is when the first of its receipts was, Unix time in milliseconds.
    """

    node: str
    peer: str
    number: int = 0
    hash: str = NOTHING
    began: int = 0
    rows: int = 0
    text: bytearray = field(default_factory=bytearray)
    """What is signed of the page, but for its end."""
    hashed: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    """The same hashed: no byte of a page that grows is hashed twice."""

    def copy(self) -> "_Chain":
        """Return another that grows by itself."""
        return replace(self, text=self.text[:], hashed=self.hashed.copy())

    def turn(self, now: float) -> None:
        """Begin a new page where there is none that grows, or that is full, or has grown long enough."""
        old = self.rows and now * 1000 - self.began >= PAGE_SECONDS * 1000
        if self.rows and not old and self.rows < PAGE_ROWS:
            return
        self.number += 1
        self.rows, self.text, self.hashed = 0, bytearray(), hashlib.sha256()
        self._add(
            f'{{"before":"{self.hash}","node":{_quoted(self.node)},"number":{self.number},'
            f'"peer":{_quoted(self.peer)},"rows":['
        )

    def take_from(self, receipts: list[Receipt]) -> None:
        """Move as many receipts to the last page as it has room for, the first ones."""
        taken = receipts[: PAGE_ROWS - self.rows]
        if not self.rows:
            self.began = receipts[0].at
        comma = "," if self.rows else ""
        self._add(comma + ",".join([receipt.json for receipt in taken]))
        self.rows += len(taken)
        del receipts[: len(taken)]

    def closed(self, identity: Identity) -> bytes:
        """Sign the last page as it is now, and return it as JSON: what is signed, with hash and signature added."""
        hashed = self.hashed.copy()
        hashed.update(b"]}")
        self.hash = hashed.hexdigest()
        signature = identity.sign(DOMAIN, self.hash.encode()).hex()
        return b"".join((self.text, f'],"hash":"{self.hash}","signature":"{signature}"}}'.encode()))

    def _add(self, text: str) -> None:
        piece = text.encode()
        self.text += piece
        self.hashed.update(piece)


class ReceiptLog:
    """The chains of this node, in its store. Lives on one event loop."""

    def __init__(
        self, book: "ReceiptBook", store: Store, identity: Identity, wall: Clock, *, days: int
    ) -> None:
        """Pages are kept for so many `days`; `wall` returns Unix time."""
        self.book = book
        """What this process writes down."""
        self._store = store
        self._identity = identity
        self._wall = wall
        self._days = days
        self._chains: dict[str, _Chain] = {}
        self._kept: dict[str, int] = {}
        """When each page began, in milliseconds, the oldest first."""
        self._turn = asyncio.Lock()

    async def restore(self) -> None:
        """Find the ends of the chains; raise `StoreUnavailable`."""
        pages = [page for page in await self._read() if page.rows]
        for page in sorted(pages, key=lambda page: page.rows[0].at):
            self._kept[_name(page.peer, page.number)] = page.rows[0].at
            chain = self._chain(page.peer)
            if page.number > chain.number:
                # It grows no more: the next receipt begins another.
                chain.number, chain.hash = page.number, page.hash

    async def run(self) -> None:
        """Write what there is, until cancelled."""
        waiting = False
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self.write()
            except StoreUnavailable as error:
                if not waiting:
                    log.warning("receipts wait for the store: %s", error)
                waiting = True
            else:
                waiting = False
            if self.book.lost:
                log.error("%d receipts were lost: too many waited for the store", self.book.lost)
                self.book.lost = 0

    async def close(self) -> None:
        """Write what is left; what cannot be written is lost."""
        try:
            await self.write()
        except StoreUnavailable as error:
            log.warning("the last receipts were lost: %s", error)

    async def write(self) -> None:
        """Write what was written down since the last time; raise `StoreUnavailable`, and write it then with what comes next."""
        async with self._turn:
            taken = self.book.take()
            if not taken:
                return
            now = self._wall()
            by_peer: dict[str, list[Receipt]] = {}
            for peer, receipt in taken:
                by_peer.setdefault(peer, []).append(receipt)
            undo = {peer: self._chain(peer).copy() for peer in by_peer}
            pages: dict[str, bytes] = {}
            began: dict[str, int] = {}
            for peer, left in by_peer.items():
                chain = self._chain(peer)
                while left:
                    chain.turn(now)
                    chain.take_from(left)
                    name = _name(peer, chain.number)
                    pages[name], began[name] = chain.closed(self._identity), chain.began
            kept = {**self._kept, **began}
            gone = self._over(kept, now)
            rows = (Put(Space.RECEIPTS, name, page) for name, page in pages.items())
            try:
                await self._store.write(*rows, *(Delete(Space.RECEIPTS, name) for name in gone))
            except (StoreUnavailable, asyncio.CancelledError):
                # Written again it replaces the same pages.
                self._chains |= undo
                for peer, receipt in taken:
                    self.book.take_in(peer, receipt)
                raise
            self._kept = {name: at for name, at in kept.items() if name not in gone}

    async def pages(self, peer: str) -> Sequence[Page]:
        """Return the chain of this node with a peer, the oldest page first; raise `StoreUnavailable`."""
        await self.write()
        return sorted(
            (page for page in await self._read() if page.peer == peer), key=lambda page: page.number
        )

    async def totals(self) -> Mapping[str, Mapping[Side, tuple[int, int]]]:
        """Return by peer and side how many answers there are, and how many tokens they took; raise `StoreUnavailable`."""
        await self.write()
        found: dict[str, dict[Side, tuple[int, int]]] = {}
        for page in await self._read():
            sides = found.setdefault(page.peer, {})
            for row in page.rows:
                count, tokens = sides.get(row.side, (0, 0))
                sides[row.side] = count + 1, tokens + row.tokens
        return found

    def _chain(self, peer: str) -> _Chain:
        chain = self._chains.get(peer)
        if chain is None:
            chain = self._chains[peer] = _Chain(self._identity.peer, peer)
        return chain

    def _over(self, kept: Mapping[str, int], now: float) -> set[str]:
        oldest = now * 1000 - self._days * _DAY_MS
        beyond = max(len(kept) - MAX_PAGES, 0)
        return {
            name for number, (name, at) in enumerate(kept.items()) if number < beyond or at < oldest
        }

    async def _read(self) -> list[Page]:
        rows = await self._store.read(Space.RECEIPTS)
        return [page for name, row in rows.items() if (page := _thaw(name, row)) is not None]


def read(said: object) -> Sequence[Page]:
    """Read pages as another node tells them; raise `ValueError` for what is none."""
    return _PAGES.validate_python(said)


def _name(peer: str, number: int) -> str:
    return f"{peer}:{number:012}"


def _thaw(name: str, row: bytes) -> Page | None:
    try:
        page = Page.model_validate_json(row)
    except ValidationError:
        page = None
    if page is None or _name(page.peer, page.number) != name:
        log.warning("a page of receipts in the store cannot be read")
        return None
    return page
