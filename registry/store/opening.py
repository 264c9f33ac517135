"""Choice of a store by its setting: the word before the first colon names a module of this package.

A new store is one new file here with `open_url`; it is imported only when it is asked for.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import cast

import registry.store
from registry.records import PeerId
from registry.store import Store

_NO_STORES = {"opening", "limits"}

# Redis has three spellings for one protocol: plain, under TLS, and through a unix socket.
_ALIASES = {"rediss": "redis", "unix": "redis"}


def names() -> frozenset[str]:
    """Return the stores that exist: this package's own files."""
    found = {module.name for module in pkgutil.iter_modules(registry.store.__path__)}
    return frozenset(found - _NO_STORES)


def open_store(url: str, *, data_dir: Path, node: PeerId, timeout: float = 1.0) -> Store:
    """Return the store that `url` means, without touching disk or network yet.

    `url` is `memory`, `sqlite` (in `data_dir`), `sqlite:PATH`, `redis://…`, `rediss://…` or
    `unix://SOCKET?db=N`. `timeout` is seconds for each round trip. Raise `ValueError` with a
    sentence that never repeats a password.
    """
    scheme = url.partition(":")[0]
    name = _ALIASES.get(scheme, scheme)
    if name not in names():
        raise ValueError(
            f"no store is called {scheme!r}: write memory, sqlite, sqlite:PATH, "
            "redis://HOST:PORT/N, rediss://HOST:PORT/N or unix://SOCKET"
        )
    module = importlib.import_module(f"registry.store.{name}")
    opened = module.open_url(url, data_dir=data_dir, node=node, timeout=timeout)
    return cast("Store", opened)
