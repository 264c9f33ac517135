"""Rules for the arguments of every command, derived from its parser, so that they apply to each new command too."""

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from node.cli import build_parser
from node.cli.console.options import CommandParser
from node.config import sources
from node.config.settings import Settings
from tests.node.cli.conftest import Modelvine
from tests.node.cli.stand_in import PEER


def leaves(parser: CommandParser, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield every command without subcommands, as its words."""
    if not parser.commands:
        yield path
    for name, inner in parser.commands.items():
        yield from leaves(inner, *path, name)


def parser_of(path: Sequence[str]) -> CommandParser:
    parser = PARSER
    for name in path:
        parser = parser.commands[name]
    return parser


PARSER = build_parser()
COMMANDS = tuple(leaves(PARSER))
PATHS = ((), *sorted({path[:length] for path in COMMANDS for length in range(1, len(path) + 1)}))
"""Everything that has a --help of its own: the program, each command and each subcommand."""


def parsed(words: Sequence[str]) -> dict[str, Any]:
    return vars(PARSER.parse(words))


def value_for(action: argparse.Action) -> str:
    """Return a word that the argument takes."""
    if action.choices:
        return str(next(iter(action.choices)))
    for value in ("Be brief", "1", "text", "a: b", "a=b", PEER):
        try:
            if callable(action.type):
                action.type(value)
        except (ValueError, argparse.ArgumentTypeError):
            continue
        return value
    raise AssertionError(f"no word is known that {action.dest} takes")


def said(action: argparse.Action, flag: str) -> Iterator[list[str]]:
    """Yield the ways to write an option with one of its flags."""
    if action.nargs == 0:
        yield [flag]
        return
    yield [flag, value_for(action)]
    if flag.startswith("--"):
        yield [f"{flag}={value_for(action)}"]


def cases() -> Iterator[Any]:
    for path in COMMANDS:
        for action in parser_of(path).options:
            if not isinstance(action, argparse._HelpAction):
                for flag in action.option_strings:
                    yield pytest.param(path, action.dest, flag, id=f"{' '.join(path)} {flag}")


def positionals(parser: CommandParser) -> Iterator[list[str]]:
    """Yield the positional words that a command may be given: the required ones, then with each optional one added."""
    words = [value_for(a) for a in parser.positionals if a.nargs is None]
    yield words
    for action in parser.positionals:
        if action.nargs is not None:
            words = [*words, f"some {action.dest}"]
            yield words


def required(parser: CommandParser, but: argparse.Action) -> list[str]:
    return [
        word
        for action in parser.options
        if action.required and action is not but
        for word in next(said(action, action.option_strings[0]))
    ]


@pytest.mark.parametrize(("path", "dest", "flag"), list(cases()))
def test_an_option_may_stand_before_between_and_after_positional_words(
    path: tuple[str, ...], dest: str, flag: str
) -> None:
    parser = parser_of(path)
    (action,) = (a for a in parser.options if flag in a.option_strings)
    needed = required(parser, action)
    for option in said(action, flag):
        for words in positionals(parser):
            first = parsed([*path, *needed, *option, *words])
            names = [a.dest for a in parser.positionals][: len(words)]
            assert [str(first[name]) for name in names] == words
            assert first[dest] != parser.get_default(dest) or action.nargs != 0
            for index in range(len(words) + 1):
                mixed = [*words[:index], *option, *words[index:], *needed]
                assert parsed([*path, *mixed]) == first, mixed


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_word_after_two_dashes_is_no_option(path: tuple[str, ...]) -> None:
    parser = parser_of(path)
    for words in positionals(parser):
        last = parser.positionals[len(words) - 1] if words else None
        if last and last.type is None and last.choices is None:
            strange = [*words[:-1], "--node"]
            for line in (["--", *strange], [*words[:-1], "--", "--node"]):
                values = parsed([*path, *line])
                assert values[last.dest] == "--node"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_words_that_no_argument_takes_are_wrong_usage(
    modelvine: Modelvine, path: tuple[str, ...]
) -> None:
    parser = parser_of(path)
    *_, words = positionals(parser)
    needed = [w for a in parser.options if a.required for w in next(said(a, a.option_strings[0]))]
    for *more, reason in (
        ["--no-such-option", "there is no option '--no-such-option'"],
        ["one too many", "unrecognized arguments: one too many"],
        ["--", "--one-too-many", "unrecognized arguments: --one-too-many"],
    ):
        ended = modelvine(*path, *needed, *words, *more)
        assert (ended.code, ended.out) == (2, "")
        assert reason in ended.err
        assert f"`modelvine {' '.join(path)} --help`" in ended.err


def test_every_setting_that_has_a_flag_is_an_option_of_up() -> None:
    flags = {flag for option in parser_of(["up"]).options for flag in option.option_strings}
    assert {key for key in sources.FLAG_KEYS if sources.flag(key) not in flags} == set()


def examples() -> Iterator[str]:
    """Yield every example of the help of each command, and of the program's own."""
    for path in PATHS:
        _, _, text = (parser_of(path).epilog or "").partition("Examples:\n")
        for line in re.sub(r"\\\n *", "", text).splitlines():
            if not line.lstrip().startswith("#"):
                yield line.strip()


EXAMPLES = tuple(dict.fromkeys(examples()))


def words_of(line: str) -> list[str]:
    """Split an example as a shell would, with an explanation behind it: all of it is pasted."""
    line = re.sub(r"^\(umask 077; (.*)\)$", r"\1", line)
    command, *files = re.split(r" [<>] ", line)
    assert not any(" " in file for file in files)
    words = shlex.split(command)
    return words[words.index("modelvine") + 1 :]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_help_has_a_sentence_and_an_example_and_fits_100_columns(
    monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = parser_of(path)
    sentence = (shown.description or "").splitlines()[0]
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert (
        f"modelvine {' '.join(path)}".rstrip() in (shown.epilog or "").partition("Examples:\n")[2]
    )
    assert max(map(len, shown.format_help().splitlines())) <= 100


def defaults() -> Iterator[tuple[str, object]]:
    """Yield every setting with a flag whose default is a value, neither empty nor off."""
    for key in sorted(sources.FLAG_KEYS):
        section, _, name = key.partition(".")
        default = getattr(getattr(Settings(), section), name)
        if default and default is not True:
            yield key, default[0] if isinstance(default, tuple) else default


@pytest.mark.parametrize(("key", "default"), tuple(defaults()))
def test_the_help_of_a_setting_says_its_default(key: str, default: object) -> None:
    (option,) = (option for option in parser_of(["up"]).options if option.dest == key)
    shown = f"{default:g}" if isinstance(default, float) else default
    assert f"(default: {shown}" in (option.help or "")


@pytest.mark.parametrize("line", EXAMPLES)
def test_a_pasted_example_of_the_help_is_understood(line: str) -> None:
    assert re.match(r"(MODELVINE_\w+=\w+ |\(umask 077; )?modelvine ", line)
    assert parsed(words_of(line))["run"]


# Users' keys need a running node; an invitation is no setting.
AT_A_NODE = {"create", "list", "rotate", "revoke", "ann", "usage", "--join"}


@pytest.mark.parametrize(
    "line",
    [
        line
        for line in EXAMPLES
        if set(words_of(line)) & {"up", "config", "key"} and not set(words_of(line)) & AT_A_NODE
    ],
)
def test_a_pasted_example_about_settings_and_keys_does_what_it_says(
    modelvine: Modelvine, line: str
) -> None:
    first, *words = words_of(line)
    for needed in (("key", "new"), ("key", "swarm", "swarm.key")):
        if [first, *words][: len(needed)] != [*needed]:
            assert modelvine(*needed).code == 0
    # What `up` would run with, without running it.
    line_of_show = ["config", "show", *words] if first == "up" else [first, *words]
    ended = modelvine(*line_of_show)
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up", "--htp", "127.0.0.1:0"), "there is no option '--htp': did you mean '--http'?"),
        (("chat", "tiny", "--max_tokens=4", "hi"), "there is no option '--max_tokens': did you mean '--max-tokens'?"),
        (("models", "--zzz"), "there is no option '--zzz'"),
        (("key", "create", "ann", "--rmp", "6"), "there is no option '--rmp': did you mean '--rpm'?"),
    ],
)  # fmt: skip
def test_an_unknown_option_is_named_with_the_closest_one(
    modelvine: Modelvine, words: Sequence[str], said: str
) -> None:
    ended = modelvine(*words)
    (line,) = ended.err.splitlines()
    assert (ended.code, line.partition(" `modelvine")[0].rstrip(";")) == (2, f"modelvine: {said}")
