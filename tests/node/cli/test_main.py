import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from node import __version__
from node.cli import NAMES
from node.cli.console.worker_options import MODALITIES, TEMPLATES, TYPES
from node.compiled import is_compiled
from registry.records import ModelType
from router import worker_description, workers
from tests.node.cli.conftest import Modelvine
from tests.node.cli.stand_in import Said, StandIn

ROOT = Path(__file__).parents[3]
HEAVY = (
    "aiohttp",
    "asyncio",
    "cryptography",
    "libp2p",
    "orjson",
    "psycopg",
    "pydantic",
    "redis",
    "trio",
    "uvloop",
)


def test_every_command_of_the_contract_is_there() -> None:
    contract = {
        "chat",
        "config",
        "key",
        "models",
        "peers",
        "register",
        "route",
        "status",
        "unregister",
        "up",
    }
    assert contract <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_itself_with_an_example(modelvine: Modelvine, name: str) -> None:
    shown = modelvine(name.replace("_", "-"), "--help")
    assert shown.code == 0
    about, _, examples = shown.out.partition("Examples:")
    assert len(about) > 100
    assert f"modelvine {name.replace('_', '-')}" in examples


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("name", NAMES)
def test_help_fits_the_terminal_except_examples(
    modelvine: Modelvine, monkeypatch: pytest.MonkeyPatch, name: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    about, _, _ = modelvine(name.replace("_", "-"), "--help").out.partition("Examples:")
    assert max(map(len, about.splitlines())) <= columns


def test_help_lists_every_command_and_the_first_steps(modelvine: Modelvine) -> None:
    shown = modelvine("--help")
    assert shown.code == 0
    assert all(f"    {name} " in shown.out or f"    {name}\n" in shown.out for name in NAMES)
    assert "modelvine up" in shown.out


def test_the_version_is_shown(modelvine: Modelvine) -> None:
    output = modelvine("--version").out
    assert output == f"modelvine {__version__} (compiled: {'yes' if is_compiled() else 'no'})\n"


@pytest.mark.parametrize(
    "words", [("nonsense",), ("up", "--no-such-flag"), ("key",), ("config",), ("register",)]
)
def test_wrong_usage_exits_with_2_and_one_line_that_names_the_help(
    modelvine: Modelvine, words: tuple[str, ...]
) -> None:
    ended = modelvine(*words)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert line.startswith("modelvine: ")
    assert re.search(r"`modelvine( \w+)? --help`", line)
    assert ended.out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("statuz",),
            "there is no command 'statuz': did you mean 'status'? `modelvine --help` lists",
        ),
        (
            ("key", "lst"),
            "no command 'lst': did you mean 'list'? `modelvine key --help` lists them all",
        ),
        (("xyz",), "there is no command 'xyz': `modelvine --help` lists them all"),
    ],
)
def test_a_command_that_does_not_exist_is_refused_with_the_nearest_one(
    modelvine: Modelvine, words: tuple[str, ...], said: str
) -> None:
    ended = modelvine(*words)
    assert (ended.code, said in ended.err) == (2, True)


def test_an_error_with_json_is_one_object_on_standard_error(
    modelvine: Modelvine, node: Callable[..., StandIn]
) -> None:
    refused = {"code": 1001, "message": "no such path"}
    for arguments, code, more in (
        (("models", "--json", "--node", "http://"), 2, {"type": "WrongSetting"}),
        (("models", "--json", "--no-such-flag"), 2, {"type": "WrongUsage"}),
        (("models", "--json", "--node", "http://127.0.0.1:1"), 1, {"type": "NoNode"}),
        (("models", "--json"), 1, {"type": "Refused", "status": 404, "code": 1001}),
    ):
        node(**{"GET_/api/v1/catalog": Said(refused, status=404)})
        ended = modelvine(*arguments)
        assert (ended.code, ended.out) == (code, "")
        error = json.loads(ended.err)["error"]
        assert error.pop("message")
        assert error == {"exit": code, **more}


def test_a_prompt_that_looks_like_the_json_flag_does_not_count_as_one(
    modelvine: Modelvine, node: Callable[..., StandIn]
) -> None:
    node()
    assert modelvine("chat", "tiny", "--", "--json").err.startswith("modelvine: ")


def test_without_arguments_the_help_is_shown(modelvine: Modelvine) -> None:
    shown = modelvine()
    assert shown == modelvine("--help")
    assert (shown.code, shown.err) == (0, "")


def test_building_the_parser_loads_none_of_the_heavy_libraries() -> None:
    code = "import sys, node.cli; node.cli.build_parser(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "argparse" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_a_plugin_of_pydantic_that_is_installed_sees_nothing(tmp_path: Path) -> None:
    (tmp_path / "onlooker.py").write_text("raise SystemExit('the plugin was loaded')\n")
    package = tmp_path / "onlooker-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: onlooker\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[pydantic]\nonlooker = onlooker\n")
    done = subprocess.run(
        [sys.executable, "-m", "node", "config", "show"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if "PYDANTIC" not in name}
        | {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(tmp_path)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_python_m_node_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "node", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.startswith(f"modelvine {__version__} ")


def test_a_reader_that_closes_the_pipe_early_causes_no_error() -> None:
    shell = f"{sys.executable} -m node config show | head -n 1"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.startswith("SETTING")
    assert done.stderr == ""


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line.replace("modelvine", f"{sys.executable} -m node"), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["config show", "completion bash", "--help", "up --help"])
def test_an_output_that_cannot_be_written_is_reported_as_such(
    words: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    done = shell(f"modelvine {words} > /dev/full")
    expected = "modelvine: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.parametrize(
    ("words", "path", "remedy"),
    [
        ("key create ann", "POST_/api/v1/keys", "rotate NAME"),
        ("key create ann --json", "POST_/api/v1/keys", "rotate NAME"),
        ("key rotate ann", "POST_/api/v1/keys/ann/rotate", "rotate NAME"),
        ("invite ann", "POST_/api/v1/grants", "revoke ann"),
    ],
)
def test_a_secret_that_could_not_be_shown_is_named_with_the_remedy(
    node: Callable[..., StandIn], words: str, path: str, remedy: str
) -> None:
    payload = {
        "keys": [{"name": "ann", "key": "mv_x"}],
        "name": "ann",
        "invitation": "y",
        "expires": 1,
    }
    node(**{path: Said(payload)})
    done = shell(f"modelvine {words} > /dev/full")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert "created without being shown: ann; `modelvine key " + remedy in done.stderr


@pytest.mark.parametrize(
    ("closed", "code", "said"),
    [(">&-", 0, ""), ("2>&-", 0, "SETTING"), (">&- 2>&-", 0, ""), ("--config nowhere 2>&-", 2, "")],
)
def test_closed_streams_lead_nowhere(closed: str, code: int, said: str) -> None:
    done = shell(f"modelvine config show {closed}")
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(said) if said else not done.stdout


def test_a_closed_standard_input_is_empty() -> None:
    done = shell("modelvine route tiny --chat - <&-")
    assert (done.returncode, done.stderr) == (
        2,
        "modelvine: - is not JSON: Expecting value: line 1 column 1 (char 0)\n",
    )


def test_the_names_of_types_are_the_registrys() -> None:
    assert tuple(kind.name.lower().replace("_", "-") for kind in ModelType) == TYPES


def test_the_names_of_templates_are_the_routers() -> None:
    assert ("", *TEMPLATES) == workers.TEMPLATES


def test_the_names_of_modalities_are_the_routers() -> None:
    assert worker_description.MODALITIES == MODALITIES
