"""Grants at a node: those of its site by name, those of trusted issuers within their terms, no others."""

import pytest

from node.auth import grants
from node.auth.errors import GrantRefused
from node.auth.grants import Grant, Terms, issue, narrow, seal, written
from node.auth.invitation import Invitation
from node.auth.invitation import written as invited
from node.auth.key_table import MAX_CHECKED, GrantRules, KeyTable
from node.auth.keys import ApiKey, hash_of
from tests.strategies import IDENTITIES

HERE, THERE, OTHER = IDENTITIES[:3]
ENDS = 2_000_000_000
TRUSTING = GrantRules(HERE.peer, frozenset({THERE.peer}))
TERMS = Terms(expires=ENDS, models=("llama*",), rpm=60, passes=2)


def row(grant: Grant, **said: object) -> ApiKey:
    """A grant as its own site keeps it."""
    fixed = {"name": "ann", "hash": hash_of(grant.id), "issuer": grant.peer, "grant": grant.id}
    return ApiKey.model_validate({**fixed, **said})


def test_a_trusted_issuers_grant_is_a_key_within_its_terms() -> None:
    grant = issue(THERE, TERMS)
    found = KeyTable(rules=TRUSTING).find(written(grant))
    assert found is not None
    assert (found.name, found.rpm, found.expires) == (f"grant-{grant.id[:12]}", 60, ENDS)
    assert [found.opens(model) for model in ("llama-8b", "p/llama-8b", "qwen")] == [
        True,
        True,
        False,
    ]
    assert [found.ended(at) for at in (ENDS - 1, ENDS)] == ["", "expired"]


@pytest.mark.parametrize("issuer", [OTHER, HERE])
def test_nobody_elses_is_nor_one_of_this_node_that_its_site_does_not_keep(issuer) -> None:  # type: ignore[no-untyped-def]
    rules = GrantRules(HERE.peer, frozenset({THERE.peer, HERE.peer}))
    with pytest.raises(GrantRefused, match=f"from {issuer.peer}, which this node does not trust"):
        KeyTable(rules=rules).find(written(issue(issuer, TERMS)))


def test_one_of_this_site_is_known_by_its_name_and_revoked_by_it() -> None:
    grant = issue(HERE, TERMS)
    rules = GrantRules(OTHER.peer)
    found = KeyTable([row(grant)], rules).find(written(grant))
    assert found is not None
    assert (found.name, found.ended(0)) == ("ann", "")
    revoked = KeyTable([row(grant, revoked=5.0)], rules).find(written(grant))
    assert revoked is not None
    assert revoked.ended(0) == "revoked"


def test_the_name_of_a_grant_is_not_lent_to_the_same_terms_of_another_issuer() -> None:
    grant = issue(HERE, TERMS)
    body = grant.blocks[0].body
    copied = grants.Block(grant.blocks[0].terms, body, THERE.sign(b"modelvine/1/grant\0", body))
    found = KeyTable([row(grant)], TRUSTING).find(
        written(Grant(THERE.public, (copied,), grant.secret))
    )
    assert found is not None
    assert found.name != "ann"


def test_what_was_passed_on_is_bound_by_all_that_it_was_passed_on_from() -> None:
    grant = issue(THERE, TERMS)
    wider = narrow(grant, Terms(expires=ENDS + 9, models=("llama-8b", "qwen"), rpm=6_000))
    found = KeyTable(rules=TRUSTING).find(written(wider))
    assert found is not None
    assert [found.opens(model) for model in ("llama-8b", "llama-70b", "qwen")] == [
        True,
        False,
        False,
    ]
    assert [key.rpm for key in found.line] == [6_000, 60]
    assert found.ended(ENDS) == "expired"
    assert found.name.startswith(f"grant-{grant.id[:12]}.")
    assert len({key.name for key in found.line}) == 2


def test_what_comes_of_the_background_stays_there() -> None:
    grant = issue(THERE, TERMS.model_copy(update={"background": True}))
    found = KeyTable(rules=TRUSTING).find(written(narrow(grant, TERMS)))
    assert found is not None
    assert found.background


def test_a_revoked_one_ends_with_all_that_was_passed_on_of_it() -> None:
    grant = issue(THERE, TERMS)
    rules = GrantRules(HERE.peer, TRUSTING.trusted, frozenset({grant.id}))
    for text in (written(grant), written(narrow(grant, TERMS))):
        found = KeyTable(rules=rules).find(text)
        assert found is not None
        assert found.ended(0) == "revoked"


def test_a_grant_for_other_nodes_is_refused_wherever_that_stands() -> None:
    table = KeyTable(rules=TRUSTING)
    meant = issue(THERE, TERMS.model_copy(update={"nodes": (HERE.peer,)}))
    assert table.find(written(meant)) is not None
    elsewhere = narrow(meant, Terms(expires=ENDS, nodes=(OTHER.peer,)))
    with pytest.raises(GrantRefused, match="not for this node"):
        table.find(written(elsewhere))


def test_a_sealed_one_is_shown_by_its_node_alone() -> None:
    table, grant = KeyTable(rules=TRUSTING), issue(THERE, TERMS)
    sealed = written(seal(grant, OTHER.peer))
    assert table.granted(sealed, OTHER.peer).rpm == 60
    for holder in (HERE.peer, None):
        with pytest.raises(GrantRefused, match=r"one node only|another node"):
            table.granted(sealed, holder)
    with pytest.raises(GrantRefused, match="one node only"):
        table.find(sealed)


def test_an_invitation_is_a_key_and_one_for_a_node_is_not() -> None:
    table, grant = KeyTable(rules=TRUSTING), issue(THERE, TERMS)
    assert table.find(invited(Invitation(grant, ("/ip4/192.0.2.7/tcp/1",)))) is not None
    with pytest.raises(GrantRefused, match="is for a node"):
        table.find(invited(Invitation(grant, (), "0f" * 32)))


def test_a_forged_one_is_refused_every_time_and_a_good_one_is_checked_once() -> None:
    table, grant = KeyTable(rules=TRUSTING), issue(THERE, TERMS)
    assert table.find(written(grant)) is table.find(written(grant))
    forged = written(Grant(THERE.public, issue(OTHER, TERMS).blocks, grant.secret))
    for _ in range(2):
        with pytest.raises(GrantRefused, match="does not match"):
            table.find(forged)


def test_no_more_are_remembered_than_stated() -> None:
    table, grant = KeyTable(rules=TRUSTING), issue(THERE, TERMS)
    for n in range(MAX_CHECKED + 2):
        # Of these the part that is no grant differs.
        assert table.granted(f"{written(grant)}.{n}").rpm == 60
    assert len(table._checked) <= MAX_CHECKED
