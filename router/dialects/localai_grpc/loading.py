"""When is a worker told to load its model, and how? Only where its operator said with which options.

Before it is first asked, and again when it says that nothing is loaded: it may have been started anew.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from router.described import count_of
from router.errors import WorkerError, WorkerFailed, WorkerLoading
from router.rpc.channels import Channels
from router.rpc.failures import RpcFailed, cleaned
from router.rpc.messages import LOCALAI, methods_of
from router.workers import Option, Worker

log = logging.getLogger("modelvine.router")

MAX_WORKERS = 4_096
"""Workers that are remembered to have loaded; beyond that all are forgotten, which costs each one more word."""

_LOAD = methods_of(LOCALAI)["LoadModel"]
_CODES = frozenset({"UNKNOWN", "FAILED_PRECONDITION", "NOT_FOUND", "INTERNAL"})
# An exception's text is all that some backends tell.
_NOTHING_LOADED = re.compile(
    r"no attribute '(?:tokenizer|model|llm|pipe|engine|processor)\w*'|not (?:been )?loaded|no model|not initiali[sz]ed",
    re.IGNORECASE,
)
_FLASH = "FlashAttention"
_OFF = frozenset({"off", "false", "no", "0", "disabled", "none"})


_Told = tuple[str, str, str]
_Outcome = WorkerError | None


class Loading:
    """Which workers have loaded their models, as far as this process knows."""

    def __init__(
        self,
        channels: Channels,
        spawn: Callable[[Coroutine[Any, Any, _Outcome]], "asyncio.Task[_Outcome]"],
        seconds: float,
    ) -> None:
        """A model may take so many `seconds` to load; `spawn` runs that until it ends or the node does."""
        self._channels = channels
        self._spawn = spawn
        self._seconds = seconds
        self._loaded: set[_Told] = set()
        self._busy: set[_Told] = set()

    async def at_first(self, worker: Worker, said: Mapping[str, str]) -> None:
        """Have a worker load its model, if it was not told before; raise a `WorkerError`."""
        if worker.load and _told(worker) not in self._loaded:
            await self._load(worker, said)

    async def mended(self, worker: Worker, failed: RpcFailed, said: Mapping[str, str]) -> bool:
        """Say whether a failure was that nothing is loaded, and now there is; raise a `WorkerError`."""
        if not worker.load or failed.code not in _CODES:
            return False
        if not _NOTHING_LOADED.search(failed.words):
            return False
        self._loaded.discard(_told(worker))
        await self._load(worker, said)
        return True

    async def _load(self, worker: Worker, said: Mapping[str, str]) -> None:
        if _told(worker) in self._busy:
            raise WorkerLoading
        message = options(worker)
        self._busy.add(_told(worker))
        # Whoever asked first may leave, or be too late: the model goes on being loaded for the others.
        failed = await asyncio.shield(self._spawn(self._loads(worker, message, said)))
        if failed is not None:
            raise failed

    async def _loads(self, worker: Worker, message: Any, said: Mapping[str, str]) -> _Outcome:
        try:
            told = await self._channels.ask(worker.api, _LOAD, message, said, within=self._seconds)
        except RpcFailed as failed:
            return failed.as_error("LoadModel")
        except WorkerError as failed:
            return failed
        finally:
            self._busy.discard(_told(worker))
        if not told.success:
            # Its words are for whoever operates it; they may quote paths.
            log.warning("a worker cannot load its model: %s", cleaned(told.message))
            return WorkerFailed("the worker cannot load its model")
        if len(self._loaded) >= MAX_WORKERS:
            self._loaded.clear()
        self._loaded.add(_told(worker))
        return None


def _told(worker: Worker) -> _Told:
    """What makes it load anew; a bound that was learnt since, for one, does not."""
    return worker.api, worker.own_model, worker.load


def options(worker: Worker) -> Any:
    """Return a worker's options as `ModelOptions`, named as there or in lower case; raise `WorkerFailed` for any other."""
    message = _LOAD.asked()
    fields = {_plain(name): name for name in _LOAD.asked.DESCRIPTOR.fields_by_name}
    for given, value in worker.load_options.items():
        name = fields.get(_plain(given))
        if name is None:
            raise WorkerFailed(f"the load option {given[:64]!r} is none of LocalAI's")
        try:
            _set(message, name, value)
        except (AttributeError, TypeError, ValueError) as error:
            raise WorkerFailed(f"the load option {given[:64]!r} has a wrong value") from error
    if not message.Model:
        message.Model = worker.own_model
    return message


def context_of(worker: Worker) -> int:
    """Return how many tokens the model is loaded to read and write, 0 where that is left to the backend."""
    said = (v for name, v in worker.load_options.items() if _plain(name) == "contextsize")
    return count_of(next(said, 0))


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _set(message: Any, name: str, value: Option) -> None:
    if name == _FLASH:
        _set_both(message, value)
    elif isinstance(value, list):
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)


def _set_both(message: Any, value: Option) -> None:
    """Say it as a truth value and as a text: newer servers read the latter, and each passes over what it does not know."""
    text = value if isinstance(value, str) else "on" if value else "off"
    message.FlashAttention = text.lower() not in _OFF
    number = message.DESCRIPTOR.fields_by_name[_FLASH].number
    tag = number << 3 | 2
    said = text.encode()[:64]
    message.MergeFromString(bytes([tag & 0x7F | 0x80, tag >> 7, len(said)]) + said)
