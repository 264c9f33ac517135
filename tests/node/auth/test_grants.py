"""Grants: what was signed holds, a holder that passes one on can only narrow it, and no other text opens anything."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.auth import grants
from node.auth.errors import GrantRefused
from node.auth.grants import Grant, Terms, check, issue, narrow, read, seal, written
from registry.signing import Identity
from tests.strategies import IDENTITIES

ISSUER, HOLDER, OTHER = IDENTITIES[:3]
ENDS = 2_000_000_000
TERMS = Terms(expires=ENDS, models=("llama*",), rpm=60, passes=2)
WIDE = Terms(expires=ENDS + 1_000, passes=3)


@pytest.fixture
def grant() -> Grant:
    return issue(ISSUER, TERMS)


def test_a_signed_grant_is_read_back_and_holds(grant: Grant) -> None:
    parsed = read(written(grant))
    check(parsed)
    assert parsed == grant
    assert (parsed.peer, parsed.expires) == (ISSUER.peer, ENDS)
    assert parsed.blocks[0].terms.models == ("llama*",)


def test_the_repr_of_a_grant_does_not_show_its_secret(grant: Grant) -> None:
    assert grant.secret.hex() not in repr(grant)
    assert repr(grant) == f"Grant({grant.id})"


def test_a_narrowed_grant_holds_under_the_terms_of_all_its_blocks(grant: Grant) -> None:
    narrower = read(written(narrow(grant, Terms(expires=ENDS - 5, models=("llama-8b",)))))
    check(narrower)
    assert [block.terms.models for block in narrower.blocks] == [("llama*",), ("llama-8b",)]
    assert narrower.expires == ENDS - 5
    assert narrower.id == grant.id


def test_a_grant_is_passed_on_only_as_often_as_it_allows(grant: Grant) -> None:
    # The second block asks for more passes than the first allows, and does not get them.
    twice = narrow(narrow(grant, WIDE), WIDE)
    check(twice)
    assert [block.terms.passes for block in twice.blocks] == [2, 1, 0]
    with pytest.raises(GrantRefused, match="may not be passed on"):
        narrow(twice, WIDE)


def test_a_grant_with_more_blocks_than_it_allows_does_not_hold(grant: Grant) -> None:
    last = narrow(issue(ISSUER, Terms(expires=ENDS, passes=1)), WIDE)
    beyond = forced(last, WIDE)
    with pytest.raises(GrantRefused, match="does not match"):
        check(beyond)
    with pytest.raises(GrantRefused, match="does not match"):
        check(forced(issue(ISSUER, Terms(expires=ENDS)), WIDE))
    # A block that is allowed holds when made the same way.
    check(forced(grant, WIDE))


def forced(grant: Grant, terms: Terms) -> Grant:
    """Pass a grant on without checking whether that is allowed, as a dishonest holder does."""
    loose = grant.blocks[-1]
    allowed = replace(loose, terms=loose.terms.model_copy(update={"passes": 3}))
    narrower = narrow(replace(grant, blocks=(*grant.blocks[:-1], allowed)), terms)
    return replace(narrower, blocks=(*grant.blocks, narrower.blocks[-1]))


def test_the_holder_of_a_narrowed_grant_cannot_go_back_to_the_wider_one(grant: Grant) -> None:
    narrower = narrow(grant, Terms(expires=ENDS - 5))
    with pytest.raises(GrantRefused, match="does not match"):
        check(Grant(narrower.issuer, narrower.blocks[:1], narrower.secret))
    with pytest.raises(GrantRefused, match="one node only"):
        check(Grant(narrower.issuer, narrower.blocks[:1]))


def test_a_sealed_grant_holds_for_its_node_alone(grant: Grant) -> None:
    sealed = read(written(seal(grant, HOLDER.peer)))
    check(sealed, holder=HOLDER.peer)
    with pytest.raises(GrantRefused, match="another node"):
        check(sealed, holder=OTHER.peer)
    with pytest.raises(GrantRefused, match="one node only"):
        check(sealed)
    with pytest.raises(GrantRefused, match="may not be passed on"):
        seal(sealed, OTHER.peer)
    # A node that saw it does not have the secret, and so cannot show the part before the seal.
    with pytest.raises(GrantRefused, match="one node only"):
        check(Grant(sealed.issuer, sealed.narrowing))
    # A grant for its bearer names no node that may show it over a link.
    with pytest.raises(GrantRefused, match="another node"):
        check(grant, holder=HOLDER.peer)


def test_a_grant_may_be_sealed_at_its_full_length() -> None:
    grant = issue(ISSUER, Terms(expires=ENDS, passes=3))
    for _ in range(3):
        grant = narrow(grant, WIDE)
    check(seal(grant, HOLDER.peer), holder=HOLDER.peer)


def test_only_the_issuer_can_sign_its_grants(grant: Grant) -> None:
    for forged in (
        replace(grant, issuer=OTHER.public),
        replace(issue(OTHER, TERMS), issuer=ISSUER.public),
        replace(grant, issuer=bytes(32)),
    ):
        with pytest.raises(GrantRefused, match="does not match"):
            check(forged)


def test_the_same_terms_of_another_issuer_are_another_grant(grant: Grant) -> None:
    body = grant.blocks[0].body
    block = replace(grant.blocks[0], signature=OTHER.sign(b"modelvine/1/grant\0", body))
    copied = Grant(OTHER.public, (block,), grant.secret)
    check(copied)
    assert copied.id != grant.id


def test_a_grant_with_an_unknown_term_is_refused() -> None:
    body = b'{"expires":2000000000,"key":"' + ISSUER.public.hex().encode() + b'","moon":"full"}'
    raw = b"\x01" + ISSUER.public + b"\x01" + len(body).to_bytes(2) + body
    raw += ISSUER.sign(b"modelvine/1/grant\0", body) + ISSUER.seed
    with pytest.raises(GrantRefused, match="unknown terms"):
        read(text_of(raw))


def text_of(raw: bytes) -> str:
    from base64 import urlsafe_b64encode

    return grants.GRANT_PREFIX + urlsafe_b64encode(raw).decode().rstrip("=")


def opens(text: str, holder: str | None = None) -> bool:
    try:
        check(read(text), holder=holder)  # type: ignore[arg-type]  # as strangers write it
    except GrantRefused:
        return False
    return True


def test_ten_thousand_forged_and_widened_grants_open_nothing(grant: Grant) -> None:
    """Each with a byte changed, a part left out, doubled or exchanged, or signed by a key of the forger's own."""
    dice, forger = random.Random(16), Identity(bytes(range(32)))
    narrower, foreign = narrow(grant, Terms(expires=ENDS - 5)), issue(forger, WIDE)
    sealed = seal(grant, HOLDER.peer)
    good = [written(grant), written(narrower), written(sealed)]
    assert [opens(good[0]), opens(good[1]), opens(good[2], HOLDER.peer)] == [True, True, True]
    raws = [_raw(text) for text in good]
    for _ in range(9_000):
        raw = bytearray(dice.choice(raws))
        index = dice.randrange(len(raw))
        match dice.randrange(4):
            case 0:
                raw[index] ^= 1 << dice.randrange(8)
            case 1:
                del raw[index : index + dice.randrange(1, 40)]
            case 2:
                raw[index:index] = raw[index : index + dice.randrange(1, 40)]
            case _:
                other = dice.choice(raws)
                raw[index : index + 40] = other[index : index + 40]
        text = text_of(bytes(raw))
        if text not in good:
            assert not opens(text)
            assert not opens(text, HOLDER.peer)
    for _ in range(1_000):
        blocks = [*dice.choice((grant, narrower)).blocks, *foreign.blocks]
        dice.shuffle(blocks)
        kept = tuple(blocks[: dice.randrange(1, len(blocks) + 1)])
        secret = dice.choice((b"", foreign.secret, forger.seed, narrower.secret))
        mutant = Grant(ISSUER.public, kept, secret)
        if mutant != narrower:
            assert not opens(written(mutant))


def _raw(text: str) -> bytes:
    from base64 import urlsafe_b64decode

    coded = text.removeprefix(grants.GRANT_PREFIX)
    return urlsafe_b64decode(coded + "=" * (-len(coded) % 4))


@given(st.text(max_size=200) | st.binary(max_size=200).map(text_of))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(GrantRefused):
        read(text)


@pytest.mark.parametrize(
    "change", [lambda t: t + "A", lambda t: t + "=", lambda t: t[:40] + "\n" + t[40:]]
)
def test_a_grant_has_one_spelling(grant: Grant, change) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(GrantRefused, match="damaged"):
        read(change(written(grant)))


def test_a_text_that_is_too_long_is_not_read(grant: Grant) -> None:
    with pytest.raises(GrantRefused, match="damaged"):
        read(written(grant) + "A" * grants.MAX_CHARACTERS)
