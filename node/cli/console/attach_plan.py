"""Plan of an attachment: which models of a worker are registered now, and which are withdrawn. Values in, values out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

GONE_AFTER = 2
"""Looks in a row at which nothing was recognised, until a worker's models are withdrawn: one may be an accident."""

FIRST_SERVICE = 9
"""The first of `registry.records.SERVICE_TYPES`, whose import would slow every --help down; a test compares them."""

Found = Mapping[str, Any]
"""What the node recognised: `dialect`, `api`, `models` and more, as `/api/v1/recognise` tells it."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """Models to register, in full, and names to withdraw; whether the worker is `gone` by now, or `back`."""

    register: tuple[Mapping[str, Any], ...] = ()
    withdraw: tuple[str, ...] = ()
    gone: bool = False
    back: bool = False


class Registered:
    """What one worker has registered, as of what was seen last."""

    def __init__(self, *, only: Iterable[str] = ()) -> None:
        """Take the names of the models that are wanted, all of them where none is named."""
        self._only = tuple(only)
        self._rows: dict[_Key, Mapping[str, Any]] = {}
        self._missed = 0
        self._unseen: Counter[_Key] = Counter()

    @property
    def names(self) -> tuple[str, ...]:
        """The models that are registered."""
        return tuple(dict.fromkeys(name for name, _ in self._rows))

    def project(self, name: str) -> str:
        """Return whose a registered model is, empty where its list does not say."""
        found = (row.get("project", "") for (own, _), row in self._rows.items() if own == name)
        return str(next(found, ""))

    def seen(self, found: Found | None) -> PlanStep:
        """Take in what a look found, `None` for nothing; what is not `registered` or `withdrawn` then is asked for again."""
        if found is None:
            self._missed += 1
            if self._missed < GONE_AFTER:
                return PlanStep()
            return PlanStep((), self.names, gone=self._missed == GONE_AFTER)
        back, self._missed = self._missed >= GONE_AFTER, 0
        rows = {_key(row): row for row in rows_of(found, self._only)}
        rows |= self._unheard(rows)
        # All types of a name are withdrawn together, and those that are left registered anew.
        gone = tuple(dict.fromkeys(name for name, kind in self._rows if (name, kind) not in rows))
        changed = (row for key, row in rows.items() if self._rows.get(key) != row or key[0] in gone)
        return PlanStep(tuple(changed), gone, back=back)

    def _unheard(self, rows: Mapping["_Key", object]) -> dict["_Key", Mapping[str, Any]]:
        """Return the services that these lack, and that may be there all the same: each is asked for by itself, in a second."""
        lacking = [key for key in self._rows if key not in rows and _is_service(key)]
        self._unseen = Counter({key: self._unseen[key] + 1 for key in lacking})
        return {key: self._rows[key] for key in lacking if self._unseen[key] < GONE_AFTER}

    def registered(self, row: Mapping[str, Any]) -> None:
        """Note that a model is registered so."""
        self._rows[_key(row)] = row

    def withdrawn(self, name: str) -> None:
        """Note that a model is not registered any more."""
        self._rows = {key: row for key, row in self._rows.items() if key[0] != name}


_Key = tuple[str, object]


def _is_service(key: _Key) -> bool:
    return isinstance(key[1], int) and key[1] >= FIRST_SERVICE


def _key(row: Mapping[str, Any]) -> _Key:
    """What tells one registration of a worker from another: the model's name and type."""
    return str(row["model"]), row["said"].get("type")


def rows_of(found: Found, only: Iterable[str]) -> list[Mapping[str, Any]]:
    """Return what to register: the worker's models, those of them that are wanted, or those that are named where it tells none.

    `said` is what the worker says of the model, so that a change of that is one.
    """
    wanted = tuple(only)
    told = [dict(model) for model in found.get("models") or ()]
    if all((model.get("type") or 0) >= FIRST_SERVICE for model in told):
        services = {model.get("name") for model in told}
        told += [{"name": name} for name in wanted if name not in services]
    rows: list[Mapping[str, Any]] = []
    for model in told:
        own = str(model.pop("name", ""))
        name = shown_name(own)
        if own and (not wanted or own in wanted or name in wanted):
            more = {} if own == name else {"worker_model": own}
            if project := model.pop("project", ""):
                more["project"] = str(project)
            rows.append(
                {
                    "model": name,
                    "api": model.pop("api", found["api"]),
                    "dialect": found["dialect"],
                    **more,
                    "said": model,
                }
            )
    return rows


def shown_name(own: str) -> str:
    """Return by which name a model is registered: a file goes by its name without folders and ending."""
    if own.endswith(".gguf"):
        return own.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf") or own
    return own


def port_of(url: str) -> str:
    """Return the port that a URL names, empty where it names none; it tells replicas of one model apart."""
    try:
        port = urlsplit(url if "://" in url else f"//{url}").port
    except ValueError:
        return ""
    return str(port) if port else ""
