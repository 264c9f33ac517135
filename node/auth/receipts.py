"""Receipts: what this node asked of each other node and what it served, so that both can compare sums. Never content.

Each node keeps a chain of pages for each node that it deals with. A page holds the hash of the previous page, and is signed; the
last page grows for a minute. Only answers that ended well have a receipt, at both nodes, with tokens if the worker reported them.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from json.encoder import encode_basestring_ascii as _quoted
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from registry import signing
from registry.clock import Clock
from registry.errors import InvalidSignature, StoreUnavailable
from registry.records import PeerId
from registry.signing import Identity
from registry.store import Delete, Put, Space, Store

if TYPE_CHECKING:
    from node.auth.books import ReceiptBook, WaitingReceipt


log = logging.getLogger("modelvine.receipts")

PERIOD = 0.25
"""Seconds between two writes: a node that is killed may lose the receipts of that time."""

PAGE_ROWS = 200
PAGE_SECONDS = 60.0
"""Longest time for which a page grows; a page is full at `PAGE_ROWS` receipts."""

MAX_PAGES = 512
"""Pages that a node keeps, of all its chains; beyond that, the oldest are deleted."""

NOTHING = "0" * 64
"""Predecessor hash of a chain's first page."""

DOMAIN = b"modelvine/1/receipts\0"
_DAY_MS = 86_400_000


class Side(StrEnum):
    """Role of the node in an answer."""

    ASKED = "asked"
    SERVED = "served"


Count = Annotated[int, Field(ge=0, lt=2**53)]
Text = Annotated[str, StringConstraints(max_length=300)]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


@dataclass(slots=True)
class Receipt:
    """One answer that ended well, as a page has it. `at` is Unix time in milliseconds, tokens are `None` if not known."""

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
        """Prompt and completion tokens together; unknown ones count as 0."""
        return (self.prompt or 0) + (self.completion or 0)


class Page(BaseModel):
    """Receipts of `node` with `peer`. `before` is the previous page's hash; `signature` covers `hash`, in hexadecimal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: Text
    peer: Text
    number: Count
    before: Hash
    rows: Annotated[tuple[Receipt, ...], Field(max_length=PAGE_ROWS)]
    hash: str = ""
    signature: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]*$", max_length=128)] = ""

    def digest(self) -> str:
        """Return the page's correct hash: SHA-256 of all fields but hash and signature, as JSON with sorted names."""
        fields = self.model_dump(exclude={"hash", "signature"})
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


_PAGES = TypeAdapter(tuple[Page, ...])


@dataclass(slots=True)
class _Chain:
    """The end of the chain of `node` with `peer`: its last page, which may still grow.

    `hash` is the page's hash when it was last closed; `began` is the time of its first receipt, Unix time in milliseconds.
    """

    node: str
    peer: str
    number: int = 0
    hash: str = NOTHING
    began: int = 0
    rows: int = 0
    text: bytearray = field(default_factory=bytearray)
    """The signed text of the page, without its end."""
    hashed: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    """Running hash of that text, so that no byte of a growing page is hashed twice."""

    def copy(self) -> "_Chain":
        """Return an independent copy."""
        return replace(self, text=self.text[:], hashed=self.hashed.copy())

    def turn(self, now: float) -> None:
        """Begin a new page if none is growing, or the last one is full or has grown for `PAGE_SECONDS`."""
        old = self.rows and now * 1000 - self.began >= PAGE_SECONDS * 1000
        if self.rows and not old and self.rows < PAGE_ROWS:
            return
        self.number += 1
        self.rows, self.text, self.hashed = 0, bytearray(), hashlib.sha256()
        self._add(
            f'{{"before":"{self.hash}","node":{_quoted(self.node)},"number":{self.number},'
            f'"peer":{_quoted(self.peer)},"rows":['
        )

    def take_from(self, receipts: "list[WaitingReceipt]") -> None:
        """Move the first receipts to the last page, as many as it has room for."""
        taken = receipts[: PAGE_ROWS - self.rows]
        if not self.rows:
            self.began = receipts[0].at
        comma = "," if self.rows else ""
        self._add(comma + ",".join([receipt.text for receipt in taken]))
        self.rows += len(taken)
        del receipts[: len(taken)]

    def closed(self, identity: Identity) -> bytes:
        """Sign the last page as it is now, and return it as JSON: the signed text with hash and signature added."""
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
    """Log of this node's receipts: its chains, kept in its store. Lives on one event loop."""

    def __init__(
        self, book: "ReceiptBook", store: Store, identity: Identity, wall: Clock, *, days: int
    ) -> None:
        """Pages are kept for so many `days`; `wall` returns Unix time."""
        self.book = book
        """Receipts that wait to be written."""
        self._store = store
        self._identity = identity
        self._wall = wall
        self._days = days
        self._chains: dict[str, _Chain] = {}
        self._began_at: dict[str, int] = {}
        """The time at which each page began, in milliseconds, the oldest first."""
        self._lock = asyncio.Lock()

    async def restore(self) -> None:
        """Find the ends of the chains; raise `StoreUnavailable`."""
        pages = [page for page in await self._read() if page.rows]
        for page in sorted(pages, key=lambda page: page.rows[0].at):
            self._began_at[_name(page.peer, page.number)] = page.rows[0].at
            chain = self._chain(page.peer)
            if page.number > chain.number:
                # A restored page no longer grows: the next receipt begins a new page.
                chain.number, chain.hash = page.number, page.hash

    async def run(self) -> None:
        """Write waiting receipts every `PERIOD` seconds, until cancelled."""
        is_waiting = False
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self.write()
            except StoreUnavailable as error:
                if not is_waiting:
                    log.warning("receipts wait for the store: %s", error)
                is_waiting = True
            else:
                is_waiting = False
            if self.book.lost:
                log.error("%d receipts were lost: too many waited for the store", self.book.lost)
                self.book.lost = 0

    async def close(self) -> None:
        """Write the remaining receipts; those that cannot be written are lost."""
        try:
            await self.write()
        except StoreUnavailable as error:
            log.warning("the last receipts were lost: %s", error)

    async def write(self) -> None:
        """Write the receipts since the last write; raise `StoreUnavailable`, and keep them for the next write."""
        async with self._lock:
            taken = self.book.take()
            if not taken:
                return
            now = self._wall()
            by_peer: dict[str, list[WaitingReceipt]] = {}
            for receipt in taken:
                by_peer.setdefault(receipt.peer, []).append(receipt)
            undo = {peer: self._chain(peer).copy() for peer in by_peer}
            pages: dict[str, bytes] = {}
            began: dict[str, int] = {}
            for peer, waiting in by_peer.items():
                chain = self._chain(peer)
                while waiting:
                    chain.turn(now)
                    chain.take_from(waiting)
                    name = _name(peer, chain.number)
                    pages[name], began[name] = chain.closed(self._identity), chain.began
            kept = {**self._began_at, **began}
            expired = self._over(kept, now)
            rows = (Put(Space.RECEIPTS, name, page) for name, page in pages.items())
            try:
                await self._store.write(*rows, *(Delete(Space.RECEIPTS, name) for name in expired))
            except (StoreUnavailable, asyncio.CancelledError):
                # The next write replaces the same pages.
                self._chains |= undo
                for receipt in taken:
                    self.book.take_in(receipt)
                raise
            self._began_at = {name: at for name, at in kept.items() if name not in expired}

    async def pages(self, peer: str) -> Sequence[Page]:
        """Return this node's chain with a peer, the oldest page first; raise `StoreUnavailable`."""
        await self.write()
        return sorted(
            (page for page in await self._read() if page.peer == peer), key=lambda page: page.number
        )

    async def totals(self) -> Mapping[str, Mapping[Side, tuple[int, int]]]:
        """Return the number of answers and of their tokens, by peer and side; raise `StoreUnavailable`."""
        await self.write()
        totals: dict[str, dict[Side, tuple[int, int]]] = {}
        for page in await self._read():
            sides = totals.setdefault(page.peer, {})
            for row in page.rows:
                count, tokens = sides.get(row.side, (0, 0))
                sides[row.side] = count + 1, tokens + row.tokens
        return totals

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


def read(pages: object) -> Sequence[Page]:
    """Read pages that another node sent; raise `ValueError` for invalid ones."""
    return _PAGES.validate_python(pages)


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


def faults(pages: Sequence[Page], *, node: PeerId, peer: PeerId) -> Sequence[str]:
    """Return what is wrong with `node`'s chain with `peer`: pages that were changed, are missing, or are not signed by `node`."""
    found: list[str] = []
    public = signing.public_of(node)
    for page in pages:
        place = f"page {page.number}"
        if (page.node, page.peer) != (node, peer):
            found.append(f"{place} is of other nodes")
        if page.hash != page.digest():
            found.append(f"{place} was changed")
            continue
        try:
            signature = bytes.fromhex(page.signature)
            signing.verify(public, DOMAIN, page.hash.encode(), signature)
        except (ValueError, InvalidSignature):
            found.append(f"{place} is not signed by its node")
    for before, page in pairwise(pages):
        if page.number != before.number + 1:
            found.append(
                f"{page.number - before.number - 1} pages before {page.number} are missing"
            )
        elif page.before != before.hash:
            found.append(f"page {page.number} does not follow the previous one")
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """A request with different token counts, prompt and completion, at this node (`here`) and at the other (`there`)."""

    request: str
    here: tuple[int, int]
    there: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ReceiptComparison:
    """Comparison of two nodes' receipts: the answers and tokens on which they agree, and the differences.

    `only_here` and `only_there` are requests of which the other node has no receipt: a node that was killed loses its last ones,
    and the nodes delete old pages at different times.
    """

    answers: int
    tokens: int
    differ: tuple[Difference, ...]
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]


def compare(here: Iterable[Page], there: Iterable[Page]) -> ReceiptComparison:
    """Compare this node's receipts with the other node's: what one asked, the other served."""
    ours = _sums(here, {Side.ASKED: Side.ASKED, Side.SERVED: Side.SERVED})
    theirs = _sums(there, {Side.ASKED: Side.SERVED, Side.SERVED: Side.ASKED})
    both = ours.keys() & theirs.keys()
    agreed = {key for key in both if ours[key].fits(theirs[key])}
    return ReceiptComparison(
        answers=sum(ours[key].answers for key in agreed),
        tokens=sum(ours[key].prompt + ours[key].completion for key in agreed),
        differ=tuple(
            Difference(key[0], ours[key].tokens, theirs[key].tokens)
            for key in sorted(both - agreed)
        ),
        only_here=tuple(sorted(key[0] for key in ours.keys() - both)),
        only_there=tuple(sorted(key[0] for key in theirs.keys() - both)),
    )


@dataclass(slots=True)
class _Sum:
    """Sum of one request's answers: a continued stream may have asked one node twice."""

    answers: int = 0
    prompt: int = 0
    completion: int = 0
    told: bool = True

    @property
    def tokens(self) -> tuple[int, int]:
        return self.prompt, self.completion

    def fits(self, other: "_Sum") -> bool:
        """Return whether both sums agree; tokens are compared only if both sides know them."""
        reported = self.told and other.told
        return self.answers == other.answers and (self.tokens == other.tokens or not reported)


def _sums(pages: Iterable[Page], sides: Mapping[Side, Side]) -> dict[tuple[str, Side], _Sum]:
    sums: dict[tuple[str, Side], _Sum] = {}
    for row in (row for page in pages for row in page.rows):
        sum_ = sums.setdefault((row.request, sides[row.side]), _Sum())
        sum_.answers += 1
        sum_.prompt += row.prompt or 0
        sum_.completion += row.completion or 0
        sum_.told &= row.prompt is not None
    return sums
