"""Completion scripts: with them, shells offer what the parsers accept."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from node.cli import build_parser
from node.cli.completion import SCRIPTS, SHELLS, CommandWords, commands_of
from tests.node.cli.conftest import Modelvine
from tests.node.cli.stand_in import Said, StandIn

ROOT = Path(__file__).parents[3]
COMMANDS = tuple(commands_of(build_parser()))

ASK_BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_modelvine "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
[[ ${#COMPREPLY[@]} == 0 ]] || printf '%s\\n' "${COMPREPLY[@]}"
"""

Ask = Callable[..., list[str]]


def have(shell: str) -> bool:
    return shutil.which(shell) is not None


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The command by its name, as shells start it."""
    path = tmp_path / "bin" / "modelvine"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m node "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(shell: str) -> Path:
        path = tmp_path / f"completion.{shell}"
        path.write_text(SCRIPTS[shell](build_parser()))
        return path

    return write


@pytest.fixture
def in_bash(script: Callable[[str], Path], program: Path, tmp_path: Path) -> Ask:
    def ask(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK_BASH, "bash", str(script("bash")), str(program), *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    return ask


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_the_script_of_each_shell(modelvine: Modelvine, shell: str) -> None:
    ended = modelvine("completion", shell)
    assert (ended.code, ended.out, ended.err) == (0, SCRIPTS[shell](build_parser()), "")


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if have(shell)])
def test_each_installed_shell_understands_its_script(
    script: Callable[[str], Path], shell: str
) -> None:
    subprocess.run([shell, "-n", str(script(shell))], check=True, timeout=30)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.path))
def test_bash_completes_every_option_and_command(in_bash: Ask, command: CommandWords) -> None:
    flags = {flag for argument in command.options for flag in argument.flags}
    assert set(in_bash(*command.path, "--")) == {flag for flag in flags if flag.startswith("--")}
    if command.commands:
        assert set(in_bash(*command.path, "")) >= set(command.commands)
        first = min(command.commands)
        assert first in in_bash(*command.path, first[:-1])


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("bridge", "--dialect", "re"), ["remotellm", "responses"]),
        (("bridge", "--dialect", "=", "tg"), ["tgi"]),
        (("bridge", "--dialect", "="), ["anthropic", "llamastack", "localai", "openai", "remotellm", "responses", "tgi"]),
        (("config", "show", "--profile", "l"), ["local", "lan"]),
        (("register", "demo", "tiny", "http://x", "--type", "image-"), ["image-edit"]),
        (("completion", "z"), ["zsh"]),
        (("up", "--http", ""), []),
        (("up", "--config", "set"), ["settings one.toml"]),
        (("nonsense", "ke"), ["key"]),
    ],
)  # fmt: skip
def test_bash_completes_values(
    in_bash: Ask, tmp_path: Path, words: Sequence[str], offered: list[str]
) -> None:
    (tmp_path / "settings one.toml").touch()
    assert in_bash(*words) == offered


def test_bash_completes_model_names_except_those_with_shell_syntax(
    in_bash: Ask, node: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ["tiny", "other", "ti$(touch${IFS}evil)", "ti`x`", "ti;x", "ti'x", "hf.co/ti:7b"]
    services = [{"project": "demo", "model": name, "type": 0, "cid": ""} for name in names]
    rows = [{"node": "n", "name": "n", "self": True, "services": services}]
    node(**{"GET_/api/v1/catalog": Said({"nodes": rows})})
    for command in ("chat", "route"):
        assert in_bash(command, "t") == ["tiny"]
        assert in_bash(command, "demo/o") == ["demo/other"]
        assert in_bash(command, "hf") == ["hf.co/ti:7b"]
        assert in_bash(command, "--proj") == ["--project"]
    monkeypatch.setenv("MODELVINE_NODE", "http://127.0.0.1:1")
    assert in_bash("chat", "t") == []
    assert not (tmp_path / "evil").exists()


INTERACTIVE = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ":"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "unsetopt zle_bracketed_paste; autoload -U compinit; compinit -u -D",
    ),
}


@pytest.mark.parametrize("shell", [shell for shell in INTERACTIVE if have(shell)])
def test_the_tab_key_completes_in_a_real_shell(
    script: Callable[[str], Path], program: Path, tmp_path: Path, shell: str
) -> None:
    command, prepare = INTERACTIVE[shell]
    master, slave = pty.openpty()
    path = f"{program.parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "TERM": "dumb", "PS1": "$ ", "HOME": str(tmp_path)}
    process = subprocess.Popen(
        command,
        stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    shown = ""

    def until(text: str) -> None:
        nonlocal shown
        end = time.monotonic() + 20
        while text not in shown:
            assert select.select([master], [], [], max(0.0, end - time.monotonic()))[0], shown
            shown += os.read(master, 4096).decode()

    # The terminal also shows what is typed; only the output of the command has these words joined.
    os.write(master, f"{prepare}; source {script(shell)}; echo so''urced\n".encode())
    until("sourced")
    os.write(master, f"modelvine completi\t{shell[0]}\t > out; echo do''ne\n".encode())
    until("done")
    os.write(master, b"exit\n")
    process.wait(timeout=20)
    os.close(master)
    assert (tmp_path / "out").read_text() == SCRIPTS[shell](build_parser())


@pytest.mark.parametrize(
    "command",
    [command for command in COMMANDS if have("fish")],
    ids=lambda command: " ".join(command.path),
)
def test_fish_completes_every_option_and_command(
    script: Callable[[str], Path], program: Path, command: CommandWords
) -> None:
    path = f"{program.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "MODELVINE_NODE": "http://127.0.0.1:1"}

    def offered(*words: str) -> set[str]:
        line = " ".join(("modelvine", *words))
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source {script('fish')}; complete -C '{line}'"],
            env=environment, capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        assert done.stderr == ""
        return {row.partition("\t")[0] for row in done.stdout.splitlines()}

    flags = {flag for argument in command.options for flag in argument.flags}
    assert offered(*command.path, "--") == {flag for flag in flags if flag.startswith("--")}
    if command.commands:
        assert offered(*command.path, "") == set(command.commands)
