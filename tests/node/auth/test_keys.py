"""What a key allows, and what is kept of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from node.auth.keys import MAX_MODEL_LIMITS, PREFIX, ApiKey, hash_of, new_secret

HASH = hash_of("mv_x")


def key(**fields):
    return ApiKey(name="ann", hash=HASH, **fields)


def test_keys_look_alike_and_are_never_the_same():
    secrets = {new_secret() for _ in range(1_000)}
    assert len(secrets) == 1_000
    assert {secret[: len(PREFIX)] for secret in secrets} == {PREFIX}
    assert {len(secret) for secret in secrets} == {35}
    assert not any("@" in secret or secret.strip() != secret for secret in secrets)


@pytest.mark.parametrize(
    ("patterns", "model", "opens"),
    [
        ((), "anything", True),
        (("llama*",), "llama-3", True),
        (("llama*",), "lab/llama-3", True),
        (("llama*",), "qwen", False),
        (("llama*",), "llama-3/qwen", True),
        (("lab/*",), "lab/llama-3", True),
        (("lab/*",), "llama-3", False),
        (("lab/*",), "other/llama-3", False),
        (("meta-llama/*",), "meta-llama/Llama-3", True),
        (("meta-llama/*",), "lab/meta-llama/Llama-3", True),
        (("Llama",), "llama", False),
        (("a", "b"), "b", True),
        (("a",), "", False),
    ],
)
def test_a_pattern_matches_models_with_or_without_their_project(patterns, model, opens):
    assert key(models=patterns).allows(model) is opens


@pytest.mark.parametrize(
    ("said", "now", "why"),
    [
        ({}, 1e12, ""),
        ({"expires": 100.0}, 99.9, ""),
        ({"expires": 100.0}, 100.0, "expired"),
        ({"revoked": 5.0}, 1.0, "revoked"),
        ({"revoked": 5.0, "expires": 100.0}, 200.0, "revoked"),
    ],
)
def test_a_key_ends_when_it_expires_or_is_revoked(said, now, why):
    assert key(**said).end_reason(now) == why


@pytest.mark.parametrize(
    "said",
    [
        {"name": ""},
        {"name": "a/b"},
        {"name": "a\n"},
        {"name": "x" * 65},
        {"hash": "no"},
        {"rpm": -1},
        {"rpm": 10**10},
        {"expires": float("nan")},
        {"models": [""]},
        {"models": ["x"] * 65},
        {"role": "king"},
    ],
)
def test_an_invalid_key_is_not_read(said):
    with pytest.raises(ValidationError):
        ApiKey.model_validate({"name": "ann", "hash": HASH} | said)


def test_fields_that_a_newer_version_adds_to_a_key_are_ignored():
    assert ApiKey.model_validate({"name": "ann", "hash": HASH, "colour": "red"}).name == "ann"


@given(st.text(max_size=200))
def test_any_text_has_a_hash(text):
    assert len(hash_of(text)) == 64


def test_keys_of_older_versions_have_no_limits_of_models():
    stored = '{"role":"user","models":[],"rpm":5,"tpm":0,"tokens_per_day":0,"concurrency":0,"background":false,"expires":0.0,'
    parsed = ApiKey.model_validate_json(f'{stored}"name":"ann","hash":"{HASH}","hint":"mv_"}}')
    assert (parsed.rpm, parsed.model_limits) == (5, ())


def test_limits_of_models_are_kept_and_those_of_later_versions_are_read():
    limited = key(model_limits=[{"model": "llama*", "rpm": 60, "concurrency": 2}])
    assert ApiKey.model_validate_json(limited.model_dump_json()) == limited
    later = limited.model_dump_json().replace('"rpm":60', '"rpm":60,"colour":"red"')
    assert ApiKey.model_validate_json(later) == limited


@pytest.mark.parametrize(
    "limits",
    [
        [{"model": "", "rpm": 1}],
        [{"rpm": 1}],
        [{"model": "x" * 257, "rpm": 1}],
        [{"model": "a", "rpm": -1}],
        [{"model": "a", "rpm": 1}, {"model": "a", "tpm": 1}],
        [{"model": str(index), "rpm": 1} for index in range(MAX_MODEL_LIMITS + 1)],
    ],
)
def test_limits_of_models_are_bounded_and_each_pattern_occurs_once(limits):
    with pytest.raises(ValidationError):
        key(model_limits=limits)
