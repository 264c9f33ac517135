"""Plan of an attachment: which models of a worker to register, and which to withdraw. No I/O."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

GONE_AFTER = 2
"""Consecutive checks without a result until a worker's models are withdrawn: a single one may be an accident."""

FIRST_SERVICE = 9
"""The first of `registry.records.SERVICE_TYPES`, whose import would slow every --help down; a test compares them."""

Found = Mapping[str, Any]
"""Worker that the node has recognised: `dialect`, `api`, `models` and more, as returned by `/api/v1/recognise`."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """Models to register, in full, and names to withdraw; whether the worker is `gone`, or `back` again."""

    register: tuple[Mapping[str, Any], ...] = ()
    withdraw: tuple[str, ...] = ()
    gone: bool = False
    back: bool = False


class Registered:
    """Registrations of one worker, and its latest checks."""

    def __init__(self, *, only: Iterable[str] = ()) -> None:
        """`only` names the models to register; empty for all."""
        self._only = tuple(only)
        self._rows: dict[_Key, Mapping[str, Any]] = {}
        self._missed = 0
        self._unseen: Counter[_Key] = Counter()

    @property
    def names(self) -> tuple[str, ...]:
        """The models that are registered."""
        return tuple(dict.fromkeys(name for name, _ in self._rows))

    def project(self, name: str) -> str:
        """Return the project of a registered model, empty if the worker does not name one."""
        projects = (
            row.get("project", "") for (model, _), row in self._rows.items() if model == name
        )
        return str(next(projects, ""))

    def seen(self, found: Found | None) -> PlanStep:
        """Take the result of a check, `None` for nothing found, and return the next step.

        What is not confirmed by `registered` or `withdrawn` is part of the following step again.
        """
        if found is None:
            self._missed += 1
            if self._missed < GONE_AFTER:
                return PlanStep()
            return PlanStep((), self.names, gone=self._missed == GONE_AFTER)
        back, self._missed = self._missed >= GONE_AFTER, 0
        rows = {_key(row): row for row in rows_of(found, self._only)}
        rows |= self._unheard(rows)
        # All types of a name are withdrawn together, and the remaining ones are registered again.
        gone = tuple(dict.fromkeys(name for name, kind in self._rows if (name, kind) not in rows))
        changed = (row for key, row in rows.items() if self._rows.get(key) != row or key[0] in gone)
        return PlanStep(tuple(changed), gone, back=back)

    def _unheard(self, rows: Mapping["_Key", object]) -> dict["_Key", Mapping[str, Any]]:
        """Return the registered services that `rows` lack but that may still exist: the node has a second to ask for each."""
        lacking = [key for key in self._rows if key not in rows and _is_service(key)]
        self._unseen = Counter({key: self._unseen[key] + 1 for key in lacking})
        return {key: self._rows[key] for key in lacking if self._unseen[key] < GONE_AFTER}

    def registered(self, row: Mapping[str, Any]) -> None:
        """Note that a model is registered with this row."""
        self._rows[_key(row)] = row

    def withdrawn(self, name: str) -> None:
        """Note that a model is no longer registered."""
        self._rows = {key: row for key, row in self._rows.items() if key[0] != name}


_Key = tuple[str, object]


def _is_service(key: _Key) -> bool:
    return isinstance(key[1], int) and key[1] >= FIRST_SERVICE


def _key(row: Mapping[str, Any]) -> _Key:
    """Return what identifies a worker's registration: the model's name and type."""
    return str(row["model"]), row["said"].get("type")


def rows_of(found: Found, only: Iterable[str]) -> list[Mapping[str, Any]]:
    """Return what to register: the worker's models, limited to `only`; the models in `only` if the worker lists none.

    `said` is what the worker reports of the model, so that a change of it changes the row.
    """
    requested = tuple(only)
    models = [dict(model) for model in found.get("models") or ()]
    if all((model.get("type") or 0) >= FIRST_SERVICE for model in models):
        services = {model.get("name") for model in models}
        models += [{"name": name} for name in requested if name not in services]
    rows: list[Mapping[str, Any]] = []
    for model in models:
        worker_model = str(model.pop("name", ""))
        name = shown_name(worker_model)
        if worker_model and (not requested or worker_model in requested or name in requested):
            more = {} if worker_model == name else {"worker_model": worker_model}
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


def shown_name(worker_model: str) -> str:
    """Return the name under which a model is registered: for a GGUF file, its name without folders and suffix."""
    if worker_model.endswith(".gguf"):
        return (
            worker_model.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf") or worker_model
        )
    return worker_model


def port_of(url: str) -> str:
    """Return the port in a URL, empty if it has none; it distinguishes replicas of one model."""
    try:
        port = urlsplit(url if "://" in url else f"//{url}").port
    except ValueError:
        return ""
    return str(port) if port else ""
