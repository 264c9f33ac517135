"""Principals: which principal a caller becomes by the key it shows, and what that allows."""

import pytest

from node.auth.errors import (
    KeyExpired,
    KeyMissing,
    KeyRevoked,
    KeyUnknown,
    ModelNotAllowed,
    RoleNotAllowed,
)
from node.auth.key_ring import KeyTable
from node.auth.keys import ApiKey, Role, hash_of
from node.auth.principal import ANYBODY, NoKeys, Principal, holder_of

NOW = 1_000.0
KEYS = KeyTable(
    ApiKey(name=name, hash=hash_of(f"mv_{name}"), **said)
    for name, said in {
        "ann": {},
        "old": {"expires": NOW},
        "out": {"revoked": 1.0},
        "operator": {"role": "operator"},
    }.items()
)


def made(**fields):
    return Principal(ApiKey(name="ann", hash=hash_of("x"), **fields))


@pytest.mark.parametrize("keyless", [False, True])
@pytest.mark.parametrize(
    ("shown", "error"),
    [("mv_nobody", KeyUnknown), ("mv_old", KeyExpired), ("mv_out", KeyRevoked)],
)
def test_an_unknown_expired_or_revoked_key_is_refused_even_where_none_is_needed(
    shown, error, keyless
):
    with pytest.raises(error, match="modelvine key create"):
        holder_of(shown, KEYS, NOW, keyless=lambda: keyless)


@pytest.mark.parametrize("keyless", [False, True])
def test_a_good_key_identifies_its_holder(keyless):
    assert holder_of("mv_ann", KEYS, NOW, keyless=lambda: keyless).key.name == "ann"
    assert holder_of("mv_operator", KEYS, NOW, keyless=lambda: keyless).is_operator


def test_without_a_key_only_callers_that_need_none_are_admitted():
    assert holder_of("", NoKeys(), NOW, keyless=lambda: True) is ANYBODY
    with pytest.raises(KeyMissing):
        holder_of("", KEYS, NOW, keyless=lambda: False)


def test_clients_that_insist_on_a_key_may_show_any_text_where_none_is_needed():
    assert holder_of("sk-dummy", KEYS, NOW, keyless=lambda: True) is ANYBODY
    with pytest.raises(KeyUnknown):
        holder_of("sk-dummy", KEYS, NOW, keyless=lambda: False)


@pytest.mark.parametrize(
    ("role", "asks", "looks"),
    [(Role.USER, True, False), (Role.VIEWER, False, True), (Role.OPERATOR, True, True)],
)
def test_a_role_is_for_asking_for_looking_or_for_both(role, asks, looks):
    for may, check in ((asks, made(role=role).check_models), (looks, made(role=role).check_view)):
        if may:
            check()
        else:
            with pytest.raises(RoleNotAllowed):
                check()


def test_every_model_of_a_request_must_be_allowed():
    ann = made(models=("llama*",))
    ann.check_models("llama-3", "p/llama-2")
    with pytest.raises(ModelNotAllowed, match="'qwen', but for llama"):
        ann.check_models("llama-3", "qwen")
    assert (ann.may_see("p/llama-3"), ann.may_see("p/qwen")) == (True, False)


def test_a_key_for_a_project_opens_its_models_by_their_full_names_or_in_requests_for_that_project():
    ann = made(models=("lab/*",))
    ann.check_models("lab/tiny", "lab/org/tiny")
    ann.check_models("tiny", "org/tiny", project="lab")
    for project in ("", "other"):
        with pytest.raises(ModelNotAllowed, match="'tiny', but for lab/"):
            ann.check_models("tiny", project=project)


def test_an_error_names_only_the_first_of_many_models():
    with pytest.raises(ModelNotAllowed, match=r"e, …$"):
        made(models=("a", "b", "c", "d", "e", "f")).check_models("x")


def test_a_caller_that_needs_no_key_may_ask_and_look():
    ANYBODY.check_models("any", "model")
    ANYBODY.check_view()
    assert ANYBODY.may_see("p/m")
    assert not ANYBODY.is_operator
