"""Invitations: one string that is a key and says how to reach the mesh; an invitation for a node is no key."""

import pytest

from node.auth import grants, invitation
from node.auth.errors import GrantRefused
from node.auth.grants import Terms
from node.auth.invitation import Invitation, grant_in, read, written
from tests.strategies import IDENTITIES

PLACE = f"/ip4/192.0.2.7/tcp/6101/p2p/{IDENTITIES[0].peer}"
SWARM_KEY = "0f" * 32
GRANT = grants.issue(IDENTITIES[0], Terms(expires=2_000_000_000, models=("llama*",)))


@pytest.mark.parametrize(
    "made", [Invitation(GRANT), Invitation(GRANT, (PLACE,)), Invitation(GRANT, (PLACE,), SWARM_KEY)]
)
def test_a_written_invitation_is_read_back_and_its_repr_shows_no_secret(made: Invitation) -> None:
    assert read(f" {written(made)}\n") == made
    assert made.grant.secret.hex() not in repr(made)
    assert SWARM_KEY not in repr(made)


def test_an_invitation_for_people_is_a_key_and_one_for_a_node_is_not() -> None:
    assert grant_in(written(Invitation(GRANT, (PLACE,)))) == GRANT
    with pytest.raises(GrantRefused, match="is for a node"):
        grant_in(written(Invitation(GRANT, (PLACE,), SWARM_KEY)))


def test_an_invitation_holds_no_more_addresses_than_are_read() -> None:
    assert (
        len(read(written(Invitation(GRANT, (PLACE,) * 30))).addresses) == invitation.MAX_ADDRESSES
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "mv_key",
        "mv_node_",
        "mv_node_!!!",
        "mv_node_e30",
        "mv_grant_",
        f"{grants.written(GRANT)}.!",
        f"{grants.written(GRANT)}.e3",
        "mv_node_" + "A" * 20_000,
    ],
)
def test_text_that_is_no_invitation_is_refused(text: str) -> None:
    with pytest.raises(GrantRefused, match=r"not an invitation|damaged"):
        read(text)


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_an_invitation_that_was_not_copied_whole_is_refused(cut: int) -> None:
    for made in (Invitation(GRANT, (PLACE,)), Invitation(GRANT, (PLACE,), SWARM_KEY)):
        with pytest.raises(GrantRefused, match=r"copy it whole|not know"):
            read(written(made)[:-cut])
