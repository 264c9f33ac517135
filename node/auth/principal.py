"""Principal: the sender of a request, as far as a key or an address identifies it, and what the sender may do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from node.auth.errors import (
    KeyExpired,
    KeyMissing,
    KeyRevoked,
    KeyUnknown,
    ModelNotAllowed,
    RoleNotAllowed,
)
from node.auth.keys import PREFIX, ApiKey, Role
from registry.records import PeerId

_HOW = (
    "ask this node's operator for one (modelvine key create), and send 'Authorization: Bearer KEY'; "
    "operators can send the content of control.token in its data directory"
)
_MOST_SHOWN = 5


class KeyLookup(Protocol):
    """Lookup of the keys of a site."""

    def find(self, secret: str) -> ApiKey | None:
        """Return the key for a secret, ended or not; raise `GrantRefused` for a grant that is not valid here."""


class GrantLookup(Protocol):
    """Lookup of the grants that are valid here."""

    def granted(self, text: str, holder: PeerId | None = None) -> ApiKey:
        """Return the key for a grant that `holder` shows, ended or not; raise `GrantRefused`."""


class NoKeys:
    """A site without keys."""

    def find(self, secret: str) -> None:
        """Return `None` for every secret."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Holder of a key, or a caller that needs none; `address` is set where callers from one address share limits."""

    key: ApiKey | None = None
    address: str = ""

    @property
    def name(self) -> str:
        """Name of the key; empty without one."""
        return self.key.name if self.key else ""

    @property
    def is_operator(self) -> bool:
        """Whether the principal's key has the role operator, and so may change this node."""
        return self.key is not None and self.key.role is Role.OPERATOR

    def check_models(self, *models: str, project: str = "") -> None:
        """Raise `ModelNotAllowed` or `RoleNotAllowed` unless all these models may be used, by the names in the request.

        `project` is set if the request is for that project only.
        """
        if (key := self.key) is None:
            return
        if key.role is Role.VIEWER:
            raise RoleNotAllowed("this key has the role viewer, and cannot use models")
        for model in models:
            if not (key.allows(model) or (project and key.allows(f"{project}/{model}"))):
                shown = ", ".join(key.models[:_MOST_SHOWN])
                more = ", …" if len(key.models) > _MOST_SHOWN else ""
                raise ModelNotAllowed(
                    f"this key is not for the model {model[:200]!r}, but for {shown}{more}"
                )

    def may_see(self, name: str) -> bool:
        """Return whether the holder's key is for a model, by `MODEL` or `PROJECT/MODEL`."""
        return self.key is None or self.key.allows(name)

    def check_view(self) -> None:
        """Raise `RoleNotAllowed` unless the holder may view this node's state."""
        if self.key is not None and self.key.role is Role.USER:
            raise RoleNotAllowed(
                "this requires a key with the role viewer or operator; your key has the role user"
            )


ANYBODY = Principal()

PRINCIPAL = web.RequestKey("principal", Principal)
"""The principal of a request."""


def holder_of(
    secret: str, keys: KeyLookup, now: float, *, keyless: Callable[[], bool]
) -> Principal:
    """Return the principal for a secret, empty for none; `keyless` says whether the caller needs no key. `now` is Unix time.

    Raise `KeyMissing`, `KeyUnknown`, `KeyExpired`, `KeyRevoked` or `GrantRefused`. Where no key is needed, clients that
    insist on sending one may send any text without the prefix of a site's keys.
    """
    key = keys.find(secret) if secret else None
    if key is not None:
        return principal_of(key, now)
    may_ask = keyless()
    if secret and not (may_ask and not secret.startswith(PREFIX)):
        raise KeyUnknown(f"this key is not valid here; {_HOW}")
    if not may_ask:
        raise KeyMissing(f"this node requires a key; {_HOW}")
    return ANYBODY


def principal_of(key: ApiKey, now: float) -> Principal:
    """Return the holder of a key; raise `KeyExpired` or `KeyRevoked`. `now` is Unix time."""
    match key.end_reason(now):
        case "":
            return Principal(key)
        case "expired":
            raise KeyExpired(f"this key has expired; {_HOW}")
    raise KeyRevoked(f"this key was revoked; {_HOW}")
