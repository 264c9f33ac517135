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


def row(grant: Grant, **fields: object) -> ApiKey:
    """Return the row of a grant as its own site keeps it."""
    fixed = {"name": "ann", "hash": hash_of(grant.id), "issuer": grant.peer, "grant": grant.id}
    return ApiKey.model_validate({**fixed, **fields})


def test_a_trusted_issuers_grant_is_a_key_within_its_terms() -> None:
    grant = issue(THERE, TERMS)
    key = KeyTable(rules=TRUSTING).find(written(grant))
    assert key is not None
    assert (key.name, key.rpm, key.expires) == (f"grant-{grant.id[:12]}", 60, ENDS)
    assert [key.allows(model) for model in ("llama-8b", "p/llama-8b", "qwen")] == [
        True,
        True,
        False,
    ]
    assert [key.end_reason(now) for now in (ENDS - 1, ENDS)] == ["", "expired"]


@pytest.mark.parametrize("issuer", [OTHER, HERE])
def test_a_grant_of_another_issuer_or_one_that_its_own_site_does_not_keep_is_refused(
    issuer,
) -> None:  # type: ignore[no-untyped-def]
    rules = GrantRules(HERE.peer, frozenset({THERE.peer, HERE.peer}))
    with pytest.raises(GrantRefused, match=f"from {issuer.peer}, which this node does not trust"):
        KeyTable(rules=rules).find(written(issue(issuer, TERMS)))


def test_a_grant_of_this_site_has_the_name_and_the_revocation_of_its_row() -> None:
    grant = issue(HERE, TERMS)
    rules = GrantRules(OTHER.peer)
    key = KeyTable([row(grant)], rules).find(written(grant))
    assert key is not None
    assert (key.name, key.end_reason(0)) == ("ann", "")
    revoked = KeyTable([row(grant, revoked=5.0)], rules).find(written(grant))
    assert revoked is not None
    assert revoked.end_reason(0) == "revoked"


def test_the_same_terms_signed_by_another_issuer_do_not_get_the_name_of_a_grant() -> None:
    grant = issue(HERE, TERMS)
    body = grant.blocks[0].body
    copied = grants.Block(grant.blocks[0].terms, body, THERE.sign(b"modelvine/1/grant\0", body))
    key = KeyTable([row(grant)], TRUSTING).find(
        written(Grant(THERE.public, (copied,), grant.secret))
    )
    assert key is not None
    assert key.name != "ann"


def test_a_grant_that_was_passed_on_is_bound_by_all_grants_it_comes_from() -> None:
    grant = issue(THERE, TERMS)
    wider = narrow(grant, Terms(expires=ENDS + 9, models=("llama-8b", "qwen"), rpm=6_000))
    found = KeyTable(rules=TRUSTING).find(written(wider))
    assert found is not None
    assert [found.allows(model) for model in ("llama-8b", "llama-70b", "qwen")] == [
        True,
        False,
        False,
    ]
    assert [key.rpm for key in found.ancestry] == [6_000, 60]
    assert found.end_reason(ENDS) == "expired"
    assert found.name.startswith(f"grant-{grant.id[:12]}.")
    assert len({key.name for key in found.ancestry}) == 2


def test_a_grant_that_comes_from_a_background_grant_stays_in_the_background() -> None:
    grant = issue(THERE, TERMS.model_copy(update={"background": True}))
    key = KeyTable(rules=TRUSTING).find(written(narrow(grant, TERMS)))
    assert key is not None
    assert key.background


def test_a_revoked_grant_ends_together_with_all_that_were_passed_on_from_it() -> None:
    grant = issue(THERE, TERMS)
    rules = GrantRules(HERE.peer, TRUSTING.trusted, frozenset({grant.id}))
    for text in (written(grant), written(narrow(grant, TERMS))):
        key = KeyTable(rules=rules).find(text)
        assert key is not None
        assert key.end_reason(0) == "revoked"


def test_a_grant_is_refused_if_any_of_its_blocks_is_for_other_nodes() -> None:
    table = KeyTable(rules=TRUSTING)
    meant = issue(THERE, TERMS.model_copy(update={"nodes": (HERE.peer,)}))
    assert table.find(written(meant)) is not None
    elsewhere = narrow(meant, Terms(expires=ENDS, nodes=(OTHER.peer,)))
    with pytest.raises(GrantRefused, match="not for this node"):
        table.find(written(elsewhere))


def test_a_sealed_grant_is_accepted_from_its_node_alone() -> None:
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


def test_a_forged_grant_is_refused_every_time_and_a_good_one_is_checked_once() -> None:
    table, grant = KeyTable(rules=TRUSTING), issue(THERE, TERMS)
    assert table.find(written(grant)) is table.find(written(grant))
    forged = written(Grant(THERE.public, issue(OTHER, TERMS).blocks, grant.secret))
    for _ in range(2):
        with pytest.raises(GrantRefused, match="does not match"):
            table.find(forged)


def test_the_number_of_remembered_grants_is_bounded() -> None:
    table, grant = KeyTable(rules=TRUSTING), issue(THERE, TERMS)
    for n in range(MAX_CHECKED + 2):
        # These texts differ only in the part that is not the grant.
        assert table.granted(f"{written(grant)}.{n}").rpm == 60
    assert len(table._checked) <= MAX_CHECKED
