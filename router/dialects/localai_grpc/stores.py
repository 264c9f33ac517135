"""Vector stores of a LocalAI backend."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from router.canonical import store
from router.canonical.store import Delete, Find, Get, Key, Set, bytes_of
from router.dialects import Answer
from router.dialects.localai_grpc.exchange import Asking, answer_of, finite
from router.errors import WorkerFailed, WorkerRejected
from router.openai.result_writers import refused
from router.openai.result_writers.store import DONE, written
from router.rpc.failures import RpcFailed
from router.translate.request import checked

_OTHER_LENGTH = re.compile(r"\blength \d+\b.*\bexisting\b")


async def serve(asking: Asking) -> Answer:
    """Have something kept, forgotten, returned or found."""
    match checked(store.read, asking.request):
        case Set(keys, values):
            said = [{"Bytes": bytes_of(value)} for value in values]
            await asking.ask("StoresSet", {"Keys": _keys(keys), "Values": said})
        case Delete(keys):
            await asking.ask("StoresDelete", {"Keys": _keys(keys)})
        case Get(keys):
            told = await asking.ask("StoresGet", {"Keys": _keys(keys)})
            return answer_of(written(*_columns(told)))
        case Find(key, top):
            told = await asking.ask("StoresFind", {"Key": _key(key), "TopK": top})
            columns, similarities = _columns(told), finite(told.Similarities)
            if len(similarities) != len(columns[0]):
                raise WorkerFailed("the worker told columns of several lengths")
            return answer_of(written(*columns, similarities))
    return answer_of(DONE)


def wrong_length(failed: RpcFailed) -> WorkerRejected | None:
    """Return the refusal of keys that are longer or shorter than those in the store, `None` where it failed otherwise.

    LocalAI's own store tells that as it tells its failures; taken for one, it would close the store to everybody.
    """
    if failed.code == "UNKNOWN" and _OTHER_LENGTH.search(failed.words):
        return refused("the keys have another length than those in the store", "keys")
    return None


def _keys(keys: Sequence[Key]) -> list[Mapping[str, object]]:
    return [_key(key) for key in keys]


def _key(key: Key) -> Mapping[str, object]:
    return {"Floats": key}


def _columns(told: Any) -> tuple[list[list[float]], list[bytes]]:
    keys = [finite(key.Floats) for key in told.Keys]
    if len(keys) != len(told.Values):
        raise WorkerFailed("the worker told columns of several lengths")
    return keys, [value.Bytes for value in told.Values]
