"""Local workers: their models, addresses and dialects. Private to this node."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

import orjson

from registry.catalog import names_of
from registry.records import Key, Service

Scalar = str | bool | int | float
Option = Scalar | list[Scalar]
"""Value of one option for loading a model."""

Template = Literal["", "worker", "chatml", "llama3", "plain"]
"""How messages become the single text that some workers need; if empty, their dialect decides."""

TEMPLATES: tuple[Template, ...] = get_args(Template)


@dataclass(frozen=True, slots=True)
class Worker:
    """One replica of one model on this machine.

    `api` is the URL that was registered: a base (`http://127.0.0.1:8080`, `…/v1`) or a full endpoint. `model` is the
    worker's own name for the model, empty if it is the registered one. `capacity` is the number of requests that it
    takes at one time, 0 if that is not known. `load` is the JSON object of options to load the model with, if the
    worker's protocol has that: as text, since 1 and true are equal in Python. `headers` are sent with every request, see
    `router.worker_headers`. `template` is how a chat becomes one text, if the worker needs that.
    """

    service: Service
    api: str
    dialect: str = "openai_http"
    model: str = ""
    capacity: int = 0
    load: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    template: Template = ""

    @property
    def key(self) -> Key:
        """Identity of the worker: project, model, cid, type."""
        return self.service.key

    @property
    def own_model(self) -> str:
        """The name to use when speaking to the worker."""
        return self.model or self.service.model

    @property
    def load_options(self) -> Mapping[str, Option]:
        """The options to load the model with, by the operator's names for them."""
        options: dict[str, Option] = orjson.loads(self.load) if self.load else {}
        return options


@dataclass(frozen=True, slots=True)
class Workers:
    """An immutable table of workers, indexed by the names that clients use."""

    by_key: MappingProxyType[Key, Worker] = field(default_factory=lambda: MappingProxyType({}))
    by_name: MappingProxyType[str, tuple[Worker, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )

    @classmethod
    def of(cls, workers: Iterable[Worker]) -> "Workers":
        """Make a table; of two workers with the same key, the later counts."""
        by_key = {worker.key: worker for worker in workers}
        by_name: dict[str, tuple[Worker, ...]] = {}
        for worker in by_key.values():
            for name in names_of(worker.service):
                by_name[name] = (*by_name.get(name, ()), worker)
        return cls(MappingProxyType(by_key), MappingProxyType(by_name))

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.by_key.values())

    def __len__(self) -> int:
        return len(self.by_key)

    def services(self) -> tuple[Service, ...]:
        """Return what other nodes may know of this table, in a stable order."""
        return tuple(sorted(worker.service for worker in self.by_key.values()))
