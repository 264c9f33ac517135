"""Invitation: a grant, and the contact of the mesh in which it holds, as one string.

    GRANT                                      a key: `OPENAI_API_KEY`
    GRANT.base64url(JSON)                      the same, for `modelvine up --join` too
    mv_node_base64url(JSON)                    with the mesh's key: for `modelvine up --join` alone

An invitation that holds the mesh's key is refused as a key for models: the mesh's key would travel with every request.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from node.auth import grants
from node.auth.errors import GrantRefused
from node.auth.grants import GRANT_PREFIX, Grant
from node.auth.keys import PREFIX

NODE_PREFIX = f"{PREFIX}node_"
"""Prefix of an invitation that holds the mesh's key."""

INVITED = (GRANT_PREFIX, NODE_PREFIX)
"""Prefixes of keys that are a grant or hold one."""

MAX_CHARACTERS = 12_288
MAX_ADDRESSES = 8

_Address = Annotated[str, StringConstraints(pattern=r"^/[!-~]{1,255}$")]


class MeshContact(BaseModel):
    """Contact of a mesh: addresses of its nodes, and its swarm key as 64 hexadecimal characters, empty for an open mesh."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    addresses: Annotated[tuple[_Address, ...], Field(max_length=MAX_ADDRESSES)] = ()
    swarm_key: Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{64})?$")] = Field(
        "", repr=False
    )
    grant: Annotated[str, StringConstraints(max_length=grants.MAX_CHARACTERS)] = Field(
        "", repr=False
    )


@dataclass(frozen=True, slots=True)
class Invitation:
    """A grant, and the mesh in which it can be used."""

    grant: Grant
    addresses: tuple[str, ...] = ()
    swarm_key: str = ""

    def __repr__(self) -> str:
        return f"Invitation({self.grant!r})"


def written(invitation: Invitation) -> str:
    """Return the text form of an invitation."""
    grant = grants.written(invitation.grant)
    addresses = invitation.addresses[:MAX_ADDRESSES]
    if invitation.swarm_key:
        return NODE_PREFIX + _coded(
            MeshContact(addresses=addresses, swarm_key=invitation.swarm_key, grant=grant)
        )
    return f"{grant}.{_coded(MeshContact(addresses=addresses))}" if addresses else grant


def read(text: str) -> Invitation:
    """Read an invitation; raise `GrantRefused` with the reason if it is invalid. The grant's signatures are not checked."""
    text = text.strip()
    if not text.startswith(INVITED):
        raise GrantRefused(
            f"this is not an invitation: it must begin with {GRANT_PREFIX} or {NODE_PREFIX}"
        )
    if len(text) > MAX_CHARACTERS:
        raise GrantRefused(
            f"this is not an invitation: it has more than {MAX_CHARACTERS:,} characters"
        )
    if text.startswith(NODE_PREFIX):
        contact = _way(text.removeprefix(NODE_PREFIX))
        return Invitation(grants.read(contact.grant), contact.addresses, contact.swarm_key)
    grant, dot, rest = text.partition(".")
    return Invitation(grants.read(grant), _way(rest).addresses if dot else ())


def grant_in(text: str) -> Grant:
    """Return the grant in a text that was sent as a key; raise `GrantRefused`."""
    if text.startswith(NODE_PREFIX):
        raise GrantRefused(
            "this invitation is for a node (modelvine up --join): ask for one for users"
        )
    if len(text) > MAX_CHARACTERS:
        raise GrantRefused("this grant is damaged: copy it whole")
    return grants.read(text.partition(".")[0])


def _coded(contact: MeshContact) -> str:
    body = contact.model_dump_json(exclude_defaults=True).encode()
    return urlsafe_b64encode(body).decode().rstrip("=")


def _way(coded: str) -> MeshContact:
    try:
        return MeshContact.model_validate_json(urlsafe_b64decode(coded + "=" * (-len(coded) % 4)))
    except (Base64Error, ValidationError, ValueError):
        raise GrantRefused("this invitation is damaged: copy it whole") from None
