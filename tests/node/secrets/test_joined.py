"""Joining by an invitation: kept for later starts, replaced by the next, and refused where it leads nowhere."""

import io
import stat
import time
from pathlib import Path

import pytest

from node.auth import grants, invitation
from node.auth.grants import Terms
from node.auth.invitation import Invitation
from node.config.settings import NodeSettings, Settings
from node.errors import SecretRefused
from node.secrets.joined import (
    load_invitation,
    read_argument,
    save_invitation,
    seal_grant,
    with_invitation,
)
from node.secrets.secret_files import read_swarm_key
from registry.settings import MeshSettings
from tests.strategies import IDENTITIES

PLACE = f"/ip4/192.0.2.7/tcp/6101/p2p/{IDENTITIES[0].peer}"
SWARM_KEY = "0f" * 32
SELF = IDENTITIES[1].peer


def given(key: str = "", *, seconds: float = 86_400, addresses: tuple[str, ...] = (PLACE,)) -> str:
    grant = grants.issue(IDENTITIES[0], Terms(expires=int(time.time() + seconds)))
    return invitation.written(Invitation(grant, addresses, key))


def test_an_invitation_is_kept_for_its_owner_alone_and_replaced_by_the_next(tmp_path: Path) -> None:
    assert load_invitation(tmp_path) is None
    save_invitation(tmp_path, given(SWARM_KEY))
    held = load_invitation(tmp_path)
    assert held is not None
    assert (held.addresses, held.swarm_key) == ((PLACE,), SWARM_KEY)
    assert read_swarm_key(tmp_path / "swarm.key") == SWARM_KEY
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    save_invitation(tmp_path, given())
    assert load_invitation(tmp_path) != held
    assert [file.name for file in tmp_path.iterdir()] == ["invitation"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "not an invitation"),
        (given()[:-30], "copy it whole"),
        (given(seconds=-60), "ended .*: ask for a new one"),
        (given(addresses=()), "is for users, not for a node"),
        (given().replace("mv_grant_A", "mv_grant_B", 1), "damaged"),
    ],
)
def test_a_wrong_or_expired_invitation_is_refused_and_changes_nothing(
    tmp_path: Path, text: str, words: str
) -> None:
    save_invitation(tmp_path, given(SWARM_KEY))
    before = load_invitation(tmp_path)
    with pytest.raises(SecretRefused, match=words):
        save_invitation(tmp_path, text)
    assert load_invitation(tmp_path) == before


def test_an_invitation_that_is_already_kept_may_be_named_again_after_it_expires(
    tmp_path: Path,
) -> None:
    expired = given(SWARM_KEY, seconds=-60)
    (tmp_path / "invitation").touch(mode=0o600)
    (tmp_path / "invitation").write_text(expired + "\n")
    save_invitation(tmp_path, expired)
    with pytest.raises(SecretRefused, match="ended"):
        save_invitation(tmp_path, given(SWARM_KEY, seconds=-60))


def test_an_invitation_adds_its_addresses_and_its_swarm_key_where_none_is_set(
    tmp_path: Path,
) -> None:
    held = invitation.read(given(SWARM_KEY))
    plain = with_invitation(Settings(), held, tmp_path)
    assert (plain.mesh.bootstrap, plain.node.swarm_key) == ((PLACE,), str(tmp_path / "swarm.key"))
    other = PLACE.replace("192.0.2.7", "192.0.2.8")
    settings = Settings(
        node=NodeSettings(swarm_key="mine"), mesh=MeshSettings(bootstrap=(other, PLACE))
    )
    both = with_invitation(settings, held, tmp_path)
    assert (both.mesh.bootstrap, both.node.swarm_key) == ((other, PLACE), "mine")
    assert with_invitation(Settings(), invitation.read(given()), tmp_path).node.swarm_key == ""


def test_the_grant_of_an_invitation_is_sealed_for_this_node_unless_it_has_expired() -> None:
    text = seal_grant(invitation.read(given()), SELF)
    grants.check(grants.read(text), holder=SELF)
    assert seal_grant(invitation.read(given(seconds=-1)), SELF) == ""


def test_an_invitation_is_given_as_text_in_a_file_or_on_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "invitation"
    file.touch(mode=0o600)
    file.write_text("mv_grant_x\n")
    assert read_argument(f"@{file}") == read_argument("mv_grant_x") == "mv_grant_x"
    monkeypatch.setattr("sys.stdin", io.StringIO("mv_grant_x\n"))
    assert read_argument("-") == "mv_grant_x"
    file.chmod(0o644)
    with pytest.raises(SecretRefused, match="chmod 600"):
        read_argument(f"@{file}")
