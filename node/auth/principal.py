"""Principal: who a request is from, as far as a key or a place tells, and what that allows."""

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
    """What knows the keys of a site."""

    def find(self, secret: str) -> ApiKey | None:
        """Return the key that is shown, ended or not; raise `GrantRefused` for a grant that opens nothing here."""


class GrantLookup(Protocol):
    """What knows which grants hold here."""

    def granted(self, text: str, holder: PeerId | None = None) -> ApiKey:
        """Return what a grant allows that `holder` shows, ended or not; raise `GrantRefused`."""


class NoKeys:
    """A site without keys."""

    def find(self, secret: str) -> None:
        """Know none."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Holder of a key, or somebody who may ask without one: `address` is set where callers from one have limits together."""

    key: ApiKey | None = None
    address: str = ""

    @property
    def name(self) -> str:
        """What the key is called; empty where there is none."""
        return self.key.name if self.key else ""

    @property
    def is_operator(self) -> bool:
        """Whether a key says that its holder may change this node."""
        return self.key is not None and self.key.role is Role.OPERATOR

    def ask(self, *models: str) -> None:
        """Raise `ModelNotAllowed`, or `RoleNotAllowed`, unless all these models may be asked, by the names in the request."""
        if (key := self.key) is None:
            return
        if key.role is Role.VIEWER:
            raise RoleNotAllowed("this key has the role viewer, and cannot use models")
        for model in models:
            if not key.opens(model):
                shown = ", ".join(key.models[:_MOST_SHOWN])
                more = ", …" if len(key.models) > _MOST_SHOWN else ""
                raise ModelNotAllowed(
                    f"this key is not for the model {model[:200]!r}, but for {shown}{more}"
                )

    def sees(self, name: str) -> bool:
        """Whether a model is shown to the holder, by `PROJECT/MODEL`."""
        return self.key is None or self.key.opens(name)

    def look(self) -> None:
        """Raise `RoleNotAllowed` unless the holder may see what this node shows."""
        if self.key is not None and self.key.role is Role.USER:
            raise RoleNotAllowed(
                "this requires a key with the role viewer or operator; your key has the role user"
            )


ANYBODY = Principal()

PRINCIPAL = web.RequestKey("principal", Principal)
"""Who a request is from."""


def holder_of(
    secret: str, keys: KeyLookup, now: float, *, keyless: Callable[[], bool]
) -> Principal:
    """Return who shows a key, or nothing; `keyless` says whether its sender may ask without one. `now` is Unix time.

    Raise `KeyMissing`, `KeyUnknown`, `KeyExpired`, `KeyRevoked` or `GrantRefused`. Where nobody needs a key, clients that
    insist on sending one may send any text that does not look like a key of ours.
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
    match key.ended(now):
        case "":
            return Principal(key)
        case "expired":
            raise KeyExpired(f"this key has expired; {_HOW}")
    raise KeyRevoked(f"this key was revoked; {_HOW}")
