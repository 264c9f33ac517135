"""`modelvine invite`: what is asked of a node, what people and scripts read, and what needs no node at all."""

import json
import time

import pytest

from node.auth import grants, invitation, keys
from node.auth.grants import Terms
from node.auth.invitation import Invitation
from node.cli import invite, usage
from node.cli.console import options
from node.faces.v1.keys import MAX_SECONDS
from node.faces.v1.usage import MAX_DAYS as MAX_USAGE_DAYS
from tests.node.cli.stand_in import Said
from tests.strategies import IDENTITIES

INVITE = "POST_/api/v1/grants"
SOON = int(time.time()) + 86_400
PLACE = f"/ip4/192.0.2.7/tcp/6101/p2p/{IDENTITIES[0].peer}"


def given(**fields: object) -> str:
    terms = Terms.model_validate({"expires": SOON, "models": ("llama*",), **fields}, strict=False)
    return invitation.written(Invitation(grants.issue(IDENTITIES[0], terms), (PLACE,)))


@pytest.fixture
def key(tmp_path):
    """A file with a grant that may be passed on once."""
    file = tmp_path / "ann.key"
    file.touch(mode=0o600)
    file.write_text(given(passes=1) + "\n")
    return f"@{file}"


def test_an_invitation_for_a_user_says_both_of_its_uses(modelvine, node):
    node(**{INVITE: Said({"name": "ann", "invitation": "mv_grant_x", "expires": SOON})})
    output = modelvine("invite", "ann").err
    assert ": use it like an OpenAI key, or start a node with `modelvine up --join`; it" in output


def test_only_the_invitation_goes_to_standard_output(modelvine, node):
    server = node(**{INVITE: Said({"name": "ann", "invitation": "mv_grant_x", "expires": SOON})})
    ended = modelvine("invite", "ann", "--models", "llama*", "--rpm", "60", "--days", "7", "--for-node")  # fmt: skip
    assert (ended.code, ended.out) == (0, "mv_grant_x\n")
    assert ended.err.endswith(": start a node with `modelvine up --join`; it is shown only once\n")
    sent = {name: value for name, value in server.heard[0].body.items() if value}
    assert sent == {
        "name": "ann",
        "models": ["llama*"],
        "rpm": 60,
        "expires_in": 7 * 86_400,
        "for_node": True,
    }


def test_a_warning_of_the_node_is_shown_apart_from_the_invitation(modelvine, node):
    payload = {"name": "ann", "invitation": "x", "expires": SOON, "warnings": ["only\nhere"]}
    node(**{INVITE: Said(payload)})
    ended = modelvine("invite", "--for-node")
    assert ended.out == "x\n"
    assert ended.err.startswith("warning: only\N{REPLACEMENT CHARACTER}here\n")


def test_the_bounds_of_the_options_are_those_of_the_node():
    assert (invite.MAX_DAYS * 86_400, invite.MAX_PASSES) == (MAX_SECONDS, grants.MAX_PASSES)
    assert options.MAX_RATE == keys.MAX_RATE
    assert usage.MAX_DAYS == MAX_USAGE_DAYS


def test_a_narrower_invitation_is_made_without_a_node(modelvine, key):
    ended = modelvine("invite", "--from", key, "--models", "llama-8b", "--days", "0.5", "--json")
    parsed = invitation.read(json.loads(ended.out)["invitation"])
    grants.check(parsed.grant)
    assert [b.terms.models for b in parsed.grant.blocks] == [("llama*",), ("llama-8b",)]
    assert parsed.grant.expires < SOON
    assert parsed.addresses == (PLACE,)
    again = modelvine("invite", "--from", invitation.written(parsed))
    assert (again.code, "may not be passed on" in again.err) == (1, True)


def test_what_a_grant_allows_is_shown_in_words_and_as_json(modelvine, key):
    shown = modelvine("invite", "--show", key)
    assert (shown.code, "models llama*" in shown.out, IDENTITIES[0].peer in shown.out) == (
        0,
        True,
        True,
    )
    payload = json.loads(modelvine("invite", "--show", key, "--json").out)
    assert (payload["issuer"], payload["expires"], payload["for_node"]) == (
        IDENTITIES[0].peer,
        SOON,
        False,
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--show", "hello"), 1, "not an invitation"),
        (("--show", "@nowhere"), 1, "there is no file"),
        (("--from", "mv_grant_AAAA"), 1, "damaged"),
        (("--days", "0"), 2, "--days is 0"),
        (("--days", "99999"), 2, "--days is 99999"),
        (("--days", "nan"), 2, "--days: 'nan' is not a number"),
        (("--passes", "9"), 2, "argument --passes: '9'"),
        (("--at", "nobody"), 2, "argument --at: 'nobody'"),
        (("--rpm", "-1"), 2, "argument --rpm: '-1'"),
        (("--tpm", "10000000000"), 2, "argument --tpm"),
        (("--models", ""), 2, "argument --models"),
        (("--models", ","), 2, "argument --models"),
        (("--from", given(passes=1), "--models", "x" * 999), 2, "models"),
    ],
)
def test_invalid_options_are_refused_with_the_reason(modelvine, words, code, said):
    ended = modelvine("invite", *words)
    assert (ended.code, said in ended.err) == (code, True), ended.err
