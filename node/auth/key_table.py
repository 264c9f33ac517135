"""Table of the keys that a node knows: keys by hash, grants by their content. On the path of every request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from node.auth import grants, invitation
from node.auth.errors import GrantRefused
from node.auth.grants import Grant
from node.auth.invitation import INVITED
from node.auth.keys import MAX_KEY_CHARACTERS, ApiKey, hash_of
from registry.errors import InvalidSignature
from registry.records import PeerId

MAX_CHECKED = 1_024
"""Checked grants that a process remembers."""


@dataclass(frozen=True, slots=True)
class GrantRules:
    """Grants that are valid at `node` besides those of its site: those of `trusted` issuers that are not `revoked`."""

    node: str = ""
    trusted: frozenset[PeerId] = frozenset()
    revoked: frozenset[str] = frozenset()


class KeyTable:
    """Keys by hash, and by name. Read on the path of every request; replaced as a whole when anything changes."""

    __slots__ = ("_by_hash", "_checked", "by_name", "rules")

    def __init__(self, keys: Iterable[ApiKey] = (), rules: GrantRules = GrantRules()) -> None:
        self.by_name: Mapping[str, ApiKey] = MappingProxyType({key.name: key for key in keys})
        self._by_hash = {key.hash: key for key in self.by_name.values()}
        self.rules = rules
        self._checked: dict[tuple[str, PeerId | None], ApiKey] = {}

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """All keys."""
        return tuple(self.by_name.values())

    def find(self, secret: str) -> ApiKey | None:
        """Return the key for a secret, ended or not; raise `GrantRefused` for a grant that is not valid here."""
        if secret.startswith(INVITED):
            return self.granted(secret)
        if len(secret) > MAX_KEY_CHARACTERS:
            return None
        return self._by_hash.get(hash_of(secret))

    def granted(self, text: str, holder: PeerId | None = None) -> ApiKey:
        """Return the key for a grant, ended or not; raise `GrantRefused`.

        `holder` is the node that shows the grant, `None` for a client. Signatures are checked last, and once.
        """
        key = self._checked.get((text, holder))
        if key is None:
            grant = invitation.grant_in(text)
            key = self._key_of(grant)
            grants.check(grant, holder=holder)
            if len(self._checked) >= MAX_CHECKED:
                self._checked.clear()
            self._checked[text, holder] = key
        return key

    def _key_of(self, grant: Grant) -> ApiKey:
        """Return the key that the terms of a grant make here; raise `GrantRefused`. Signatures are not checked."""
        for block in grant.blocks:
            if block.terms.nodes and self.rules.node not in block.terms.nodes:
                raise GrantRefused("this grant is not for this node")
        row = self._by_hash.get(hash_of(grant.id))
        try:
            issuer = grant.peer
        except InvalidSignature as error:
            raise GrantRefused("this grant has no issuer") from error
        is_known = row is not None and row.issuer == issuer
        if not is_known and (issuer not in self.rules.trusted or issuer == self.rules.node):
            raise GrantRefused(
                f"this grant is from {issuer}, which this node does not trust (node.trusted_issuers)"
            )
        name = row.name if row and is_known else f"grant-{grant.id[:12]}"
        revoked = row.revoked if row and is_known else float(grant.id in self.rules.revoked)
        key: ApiKey | None = None
        for number, block in enumerate(grant.narrowing):
            allowance = block.terms.allowance().model_copy(
                update={
                    "expires": float(grant.expires),
                    "background": block.terms.background or bool(key and key.background),
                }
            )
            part = hash_of(block.body.decode())
            key = ApiKey(
                **allowance.model_dump(),
                name=f"{name[:48]}.{part[:8]}" if number else name,
                hash=part,
                revoked=revoked,
                within=key,
            )
        if key is None:
            raise GrantRefused("this grant has no terms")
        return key
