"""Commands about users' keys: what they ask of a node, and what people and scripts read."""

import json

import pytest

from node.cli.console.user_keys import seconds_of
from node.errors import WrongUsage
from tests.node.cli.stand_in import Said

CREATE, LIST = "POST_/api/v1/keys", "GET_/api/v1/keys"
KEY = {
    "name": "ann", "hint": "mv_abcde", "role": "user", "models": ["llama*", "lab/*"], "created": 1_790_000_000.0,
    "rpm": 60, "tpm": 0, "tokens_per_day": 5_000, "concurrency": 0,
    "expires": 0.0, "revoked": 0.0, "state": "active",
}  # fmt: skip
LIMITED = {**KEY, "model_limits": [{"model": "llama*", "rpm": 9, "tpm": 0}]}


def made(*names):
    return Said({"code": 0, "keys": [{"name": name, "key": f"mv_of_{name}"} for name in names]})


def test_only_the_key_goes_to_standard_output(modelvine, node):
    server = node(**{CREATE: made("ann")})
    ended = modelvine("key", "create", "ann", "--models", "llama*,qwen*", "--models", "lab/*", "--expires", "30d")  # fmt: skip
    assert (ended.code, ended.out) == (0, "mv_of_ann\n")
    assert "shown only once" in ended.err
    [sent] = server.heard[0].body["keys"]
    assert {name: value for name, value in sent.items() if value} == {
        "name": "ann",
        "models": ["llama*", "qwen*", "lab/*"],
        "role": "user",
        "expires_in": 30 * 86_400,
    }


def test_a_csv_file_makes_many_keys_and_they_are_printed_as_csv(modelvine, node, tmp_path):
    server = node(**{CREATE: made("ann", "bob")})
    table = tmp_path / "class.csv"
    table.write_text('\ufeffname,models,expires,rpm\nann,,1y,\n bob ,"llama* qwen,big",,60\n')
    ended = modelvine(
        "key", "create", "--csv", str(table), "--models", "all*", "--expires", "never", "--rpm", "5"
    )
    assert ended.out == "name,key\nann,mv_of_ann\nbob,mv_of_bob\n"
    ann, bob = server.heard[0].body["keys"]
    assert (ann["models"], ann["expires_in"], ann["rpm"]) == (["all*"], 31_536_000, 5)
    assert bob["rpm"] == 60
    assert (bob["name"], bob["models"], bob["expires_in"]) == ("bob", ["llama*", "qwen", "big"], 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must begin with a row of column names"),
        ("who,models\nann,x\n", "must begin with a row of column names"),
        ("name,colour\nann,red\n", "not 'colour'"),
        ("name\n", "names no users"),
        ("name\nann,x\n", "line 2: more values"),
        ("name,expires\nann,soon\n", "'soon'"),
        ("name,tpm\nann,-1\n", "tpm is '-1'"),
        ("name,background\nann,perhaps\n", "background is 'perhaps'"),
        ("name,model_limit\nann,llama\n", "--model-limit is 'llama'"),
    ],
)
def test_an_invalid_csv_file_makes_no_key(modelvine, node, tmp_path, text, words):
    server = node(**{CREATE: made()})
    table = tmp_path / "class.csv"
    table.write_text(text)
    ended = modelvine("key", "create", "--csv", str(table))
    assert ended.code == 2
    assert words in ended.err
    assert server.heard == []


@pytest.mark.parametrize("words", [(), ("ann", "--csv", "class.csv")])
def test_either_a_name_or_a_csv_file_is_needed(modelvine, node, words):
    node()
    ended = modelvine("key", "create", *words)
    assert (ended.code, "--csv FILE" in ended.err) == (2, True)


def test_a_csv_file_that_is_not_there_is_named(modelvine, node):
    node()
    ended = modelvine("key", "create", "--csv", "nowhere.csv")
    assert (ended.code, "nowhere.csv cannot be read" in ended.err) == (2, True)


def test_keys_are_listed_for_people_and_for_machines(modelvine, node):
    ended = {**KEY, "name": "bob", "models": [], "state": "revoked", "revoked": 1_790_000_000.0}
    node(**{LIST: Said({"keys": [KEY, ended]})})
    first, ann, bob = modelvine("key", "list").out.splitlines()
    assert first.split() == ["NAME", "KEY", "ROLE", "MODELS", "LIMITS", "STATE"]
    assert ann.split()[:5] == ["ann", "mv_abcde…", "user", "llama*", "lab/*"]
    assert "60 requests a minute, 5,000 tokens a day" in ann
    assert ann.endswith("active")
    assert "all" in bob
    assert "revoked 2026-" in bob
    assert json.loads(modelvine("key", "list", "--json").out) == [KEY, ended]
    assert "role    user" in modelvine("key", "show", "ann").out
    assert json.loads(modelvine("key", "show", "ann", "--json").out) == KEY


def test_limits_of_models_are_sent_and_shown(modelvine, node, tmp_path):
    server = node(**{CREATE: made("ann"), LIST: Said({"keys": [LIMITED]})})
    modelvine(
        "key", "create", "ann", "--model-limit", "llama*:rpm=60,tpm=10000", "--model-limit", "x:8b:tokens-per-day=7"
    )  # fmt: skip
    table = tmp_path / "class.csv"
    table.write_text('name,model_limit\nann,"a:rpm=1,tpm=2 b:rpm=3"\nbob,\n')
    modelvine("key", "create", "--csv", str(table), "--model-limit", "c:concurrency=1")
    ((one,), (ann, bob)) = (request.body["keys"] for request in server.heard)
    assert one["model_limits"] == [
        {"model": "llama*", "rpm": 60, "tpm": 10_000},
        {"model": "x:8b", "tokens_per_day": 7},
    ]
    assert ann["model_limits"] == [
        {"model": "a", "rpm": 1, "tpm": 2},
        {"model": "b", "rpm": 3},
    ]
    assert bob["model_limits"] == [{"model": "c", "concurrency": 1}]
    shown = modelvine("key", "show", "ann").out
    assert "60 requests a minute, 5,000 tokens a day; llama*: 9 requests a minute" in shown


@pytest.mark.parametrize(
    "text", ["llama*", "llama*:", ":rpm=1", "a:rpm", "a:rpm=x", "a:colour=1", "a:rpm=1,rpm=2", "a:rpm=-1", "", "a:rpm=1,"]
)  # fmt: skip
def test_an_invalid_limit_of_a_model_is_refused(modelvine, node, text):
    server = node(**{CREATE: made("ann")})
    ended = modelvine("key", "create", "ann", f"--model-limit={text}")
    assert (ended.code, server.heard) == (2, [])
    assert "'llama*:rpm=60,tpm=10000'" in ended.err


def test_without_keys_the_list_says_how_to_create_one(modelvine, node):
    node(**{LIST: Said({"keys": []})})
    assert "modelvine key create" in modelvine("key", "list").out
    shown = modelvine("key", "show", "ann")
    assert (shown.code, "no key 'ann'" in shown.err) == (1, True)


def test_keys_are_rotated_and_revoked(modelvine, node):
    paths = {"POST_/api/v1/keys/ann/rotate": made("ann"), "POST_/api/v1/keys/ann/revoke": Said({})}
    node(**paths)
    assert modelvine("key", "rotate", "ann").out == "mv_of_ann\n"
    assert modelvine("key", "revoke", "ann").out.startswith("revoked the key of ann")
    assert json.loads(modelvine("key", "revoke", "ann", "--json").out)["revoked"] is True
    assert modelvine("key", "revoke", "a/b").code == 2


def test_a_key_from_the_environment_is_sent_to_the_node(modelvine, node, monkeypatch):
    server = node(**{LIST: Said({"keys": []})})
    monkeypatch.setenv("MODELVINE_KEY", "mv_mine")
    modelvine("key", "list")
    assert server.heard[0].authorization == "Bearer mv_mine"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5_400), ("12h", 43_200), ("2w", 1_209_600), ("NEVER", 0), ("", 0)]
)
def test_a_duration_is_a_number_and_a_letter_or_never(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["30", "d", "0d", "-1d", "1.5h", "1d1h", "1s"])
def test_an_invalid_duration_is_refused(text):
    with pytest.raises(WrongUsage, match="--expires"):
        seconds_of(text)
