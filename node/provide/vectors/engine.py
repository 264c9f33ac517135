"""Engine of vector stores: it indexes their files in the background, and searches texts by meaning.

A file whose embeddings are unavailable now is put off, and files of other models go on. It has failed after some failures, which
answers of a busy node are not; one that is not text, or whose embeddings are refused, has failed at once.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import orjson

from node.provide.asker import BUSY, Asker, NodeAnswer
from node.provide.database import DatabaseError, Superseded
from node.provide.files import Files
from node.provide.vectors.store import FoundText, Member, VectorStore, WrongVector
from registry.clock import Clock

log = logging.getLogger("modelvine.provide")

MAX_TEXT_BYTES = 20 * 1000 * 1000
"""Bytes of the longest file that is indexed."""

AT_ONCE = 16
"""Texts of one request for embeddings."""

PAUSE = 2.0
"""Seconds until a busy or unavailable model, or a database, is tried again."""

LONGEST_PAUSE = 60.0
"""Most seconds until a file is tried again."""

MOST_ATTEMPTS = 7
"""Failures of a file, the last of which is its result."""

_FAILURES = frozenset({404, 500, 502, 504})  # a node that has just started may not know the model


CHARACTERS = 4
"""Approximate characters of a token."""

_NEAR = 200  # characters before a chunk's end in which it may end between words


class NoEmbedding(Exception):
    """A text has no embedding now. `reply` is the node's answer."""

    def __init__(self, reply: NodeAnswer, message: str = "") -> None:
        super().__init__(message or _said(reply))
        self.heard = reply


class VectorEngine:
    """All stores of one folder."""

    def __init__(self, files: Files, store: VectorStore, *, node: str, wall: Clock) -> None:
        self.files = files
        self.store = store
        self.asker = Asker(node)
        self._readers = Asker(node, background=True)
        self._wall = wall
        self._failures = Counter[tuple[str, str]]()
        self._paused: dict[str, float] = {}
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Wake the engine: there is a file to index."""
        self._wake.set()

    async def run(self) -> None:
        """Index files until cancelled."""
        async with self.asker, self._readers:
            while True:
                self._wake.clear()
                try:
                    member = await self.files.run_in_thread(self._next)
                    if member is None:
                        await self._rest()
                    else:
                        await self._read(member)
                except Superseded:
                    log.debug("a file is gone, or another provider has taken it over")
                except (DatabaseError, OSError) as error:
                    log.error("nothing can be stored now; retrying: %s", error)  # noqa: TRY400
                    await asyncio.sleep(PAUSE)

    async def _rest(self) -> None:
        """Wait for a file to index; poll, as one may be due, and as providers that share the store cannot wake this one."""
        try:
            async with asyncio.timeout(PAUSE):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _next(self) -> Member | None:
        """Return a file that is to be indexed now."""
        now = self._wall()
        paused = [model for model, due in self._paused.items() if 0 < due - now <= PAUSE]
        return self.store.waiting(now, paused)

    async def search(self, store: str, model: str, query: str) -> list[FoundText]:
        """Return the texts nearest to a query, the nearest first; raise `NoEmbedding`, `WrongVector` or `NoStore`."""
        (vector,) = await embeddings(self.asker, model, [query])
        now = int(self._wall())
        return await self.files.run_in_thread(lambda: self.store.search(store, vector, now))

    async def _read(self, member: Member) -> None:
        """Put a file's texts into its store; after an interruption, start over."""
        try:
            text = await self.files.run_in_thread(lambda: self._text(member))
            texts = [*chunks(text, member.chunk, member.overlap)]
            await self.files.run_in_thread(lambda: self.store.forget(member, self._wall()))
            for index in range(0, len(texts), AT_ONCE):
                some = texts[index : index + AT_ONCE]
                vectors = await embeddings(self._readers, member.model, some)
                await self.files.run_in_thread(
                    partial(self.store.put, member, self._wall(), some, vectors)
                )
            error = ""
        except NoEmbedding as failure:
            error = str(failure)[:200]
            if pause := self._pause(member, failure.heard.status):
                log.debug("%s of %s is put off: %s", member.file, member.store, error)
                due = self._wall() + pause
                await self.files.run_in_thread(lambda: self.store.put_off(member, due))
                return
        except (UnicodeError, WrongVector, FileNotFoundError) as failure:
            error = str(failure)[:200]
        if error:
            log.warning("%s of %s is not indexed: %s", member.file, member.store, error)
        await self.files.run_in_thread(lambda: self.store.settle(member, error))
        del self._failures[member.store, member.file]

    def _pause(self, member: Member, status: int) -> float:
        """Return the seconds until a file without embeddings is tried again, 0 if it has failed."""
        key = member.store, member.file
        if status in _FAILURES:
            self._failures[key] += 1
        elif status not in BUSY:
            return 0
        self._paused[member.model] = self._wall() + PAUSE
        failures = self._failures[key]
        return min(PAUSE * 2.0**failures, LONGEST_PAUSE) if failures < MOST_ATTEMPTS else 0

    def _text(self, member: Member) -> str:
        path = self.files.fetch(member.file)
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise UnicodeError(f"a text has at most {MAX_TEXT_BYTES:,} bytes here")
        return path.read_bytes().decode("utf-8-sig")


async def embeddings(asker: Asker, model: str, texts: Sequence[str]) -> list[list[float]]:
    """Return a vector for each text; raise `NoEmbedding`."""
    body = orjson.dumps({"model": model, "input": [*texts], "encoding_format": "float"})
    reply = await asker.post("/v1/embeddings", body)
    if reply.status != 200:
        raise NoEmbedding(reply)
    try:
        payload = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        payload = None
    match payload:
        case {"data": [*rows]} if len(rows) == len(texts):
            try:
                return [[float(n) for n in row["embedding"]] for row in rows]
            except (KeyError, TypeError, ValueError):
                pass
    raise NoEmbedding(NodeAnswer(502), "the model's answer holds no embeddings")


def _said(reply: NodeAnswer) -> str:
    """Return the reason why the node returned no embedding."""
    try:
        payload = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        payload = None
    match payload:
        case {"error": {"message": str(message)}}:
            return f"no embedding: {message}"
    return f"no embedding: status {reply.status}"


def chunks(text: str, size: int, overlap: int) -> Iterator[str]:
    """Yield the chunks of a text: `size` and `overlap` are in tokens. A chunk ends between words if possible."""
    longest, step = size * CHARACTERS, (size - overlap) * CHARACTERS
    begin = 0
    while begin < len(text):
        end = begin + longest
        if end < len(text):
            space = max(text.rfind(" ", end - _NEAR, end), text.rfind("\n", end - _NEAR, end))
            end = space if space > begin else end
        if chunk := text[begin:end].strip():
            yield chunk
        if end >= len(text):
            return
        # If a chunk was shortened to end between words, the next one begins at its end at the latest.
        begin = min(begin + step, end)
