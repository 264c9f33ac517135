"""Options that several commands have in common, and the parser of a command's words.

The parser accepts options before, between and after the positional arguments. argparse alone assigns the positional arguments at
the first option behind one of them: `chat llama --system TEXT PROMPT` had no PROMPT. Its own remedy, `parse_intermixed_args`,
does not support subcommands.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from node.errors import WrongUsage

if TYPE_CHECKING:
    from node.config.addresses import HostPort


_END = "--"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help in which paragraphs fit the terminal; examples stay as they are, so that they can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("Examples:"):
            return super()._fill_text(text, width, indent)
        filled = argparse.HelpFormatter._fill_text  # noqa: SLF001 - argparse has no public name for it
        return "\n\n".join(filled(self, part, width, indent) for part in text.split("\n\n"))


class CommandParser(argparse.ArgumentParser):
    """Parser of the command line or of one command; on an error it raises `WrongUsage` instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise `WrongUsage` with one line; it names the help that shows the correct form."""
        if "--help" not in message:
            end = "" if message.endswith("?") else ";"
            message = f"{message}{end} `{self.prog} --help` shows what it takes"
        raise WrongUsage(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse would list all commands instead.
        if action in self._within and value not in self.commands:
            near = get_close_matches(str(value), self.commands, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            self.error(f"there is no command {value!r}: {hint}`{self.prog} --help` lists them all")
        super()._check_value(action, value)

    @property
    def commands(self) -> Mapping[str, "CommandParser"]:
        """The subcommands, by name."""
        return {name: inner for action in self._within for name, inner in action.choices.items()}

    @property
    def summaries(self) -> Mapping[str, str]:
        """One-line summaries of the subcommands, by name."""
        return {
            choice.dest: choice.help or ""
            for action in self._within
            for choice in action._choices_actions  # noqa: SLF001 - the list in --help
        }

    @property
    def _within(self) -> "list[argparse._SubParsersAction[CommandParser]]":
        kind = argparse._SubParsersAction  # noqa: SLF001 - argparse has no public name for it
        return [action for action in self._actions if isinstance(action, kind)]

    @property
    def options(self) -> Sequence[argparse.Action]:
        """Arguments with a flag."""
        return [action for action in self._actions if action.option_strings]

    @property
    def positionals(self) -> Sequence[argparse.Action]:
        """Positional arguments, without subcommands."""
        return [a for a in self._actions if not a.option_strings and a not in self._within]

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words; raise `WrongUsage`, with the usage of the command in question."""
        parser, index = self, 0
        for number, word in enumerate(words, 1):
            if word in parser.commands:
                parser, index = parser.commands[word], number
        namespace, unknown = self.parse_known_args([*words[:index], *parser.ordered(words[index:])])
        if unrecognized := [word for word in unknown if word != _END]:
            for word in takewhile(lambda word: word != _END, words):
                if word in unrecognized and parser._is_option(word):  # noqa: SLF001 - of this class
                    parser.refuse_option(word.partition("=")[0])
            parser.error(f"unrecognized arguments: {' '.join(unrecognized)}")
        return namespace

    def refuse_option(self, flag: str) -> NoReturn:
        """Raise `WrongUsage` for an option that this command does not have, with the closest one that it has."""
        flags = [option for action in self.options for option in action.option_strings]
        near = get_close_matches(flag, flags, n=1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        self.error(f"there is no option {flag!r}{hint}")

    def ordered(self, words: Sequence[str]) -> list[str]:
        """Return the words of this command, options before positional arguments, in their original order otherwise."""
        options, positionals, remaining = list[str](), list[str](), list(words)
        while remaining:
            word = remaining.pop(0)
            if word == _END:
                positionals += remaining
                break
            if not self._is_option(word):
                positionals.append(word)
                continue
            options.append(word)
            if (
                self._takes_value(word)
                and remaining
                and remaining[0] != _END
                and not self._is_option(remaining[0])
            ):
                options.append(remaining.pop(0))
        return (
            [*options, _END, *positionals]
            if any(map(self._is_option, positionals))
            else options + positionals
        )

    def _is_option(self, word: str) -> bool:
        """Return whether argparse takes a word for an option: not a text with blanks, nor a negative number."""
        name, _, _ = word.partition("=")
        if not word.startswith("-") or word == "-":
            return False
        if self._named(name):
            return True
        return " " not in word and not self._negative_number_matcher.match(word)

    def _takes_value(self, word: str) -> bool:
        return "=" not in word and any(action.nargs != 0 for action in self._named(word))

    def _named(self, flag: str) -> Sequence[argparse.Action]:
        """Return the options that a flag, or a prefix of one, may mean."""
        exact = [action for action in self.options if flag in action.option_strings]
        return exact or [
            action
            for action in self.options
            if flag.startswith("--")
            and any(full.startswith(flag) for full in action.option_strings)
        ]


def add_action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    about: str,
    *examples: str,
) -> argparse.ArgumentParser:
    """Declare a subcommand that one sentence explains, with examples; return its parser."""
    return actions.add_parser(
        name,
        help=about[0].lower() + about[1:].rstrip("."),
        description=about,
        epilog="\n  ".join(["Examples:", *examples]),
        formatter_class=HelpFormatter,
    )


def add_node_options(parser: argparse.ArgumentParser, *, about: str = "") -> None:
    """Declare how to find the node to talk to; `about` tells what the name of another node selects, if it may be given."""
    text = f"; a name, or the beginning of an id: {about}, asked of the local node" if about else ""
    parser.add_argument(
        "--node",
        metavar="NODE" if about else "URL",
        default="",
        help="URL of the node to talk to (default: MODELVINE_NODE, then the one that runs with this data directory, "
        f"then http://127.0.0.1:6100){text}",
    )
    add_data_dir(parser)


def add_wide(parser: argparse.ArgumentParser) -> None:
    """Declare `--wide`."""
    parser.add_argument(
        "--wide",
        action="store_true",
        help="print all columns and complete ids, even on a narrow terminal",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """Declare `--data-dir`, where the node keeps its files."""
    parser.add_argument(
        "--data-dir",
        dest="node.data_dir",
        metavar="DIR",
        help="directory of the node's identity key, database and control token (default: ~/.local/share/modelvine, "
        "or modelvine below XDG_DATA_HOME)",
    )


def number(text: str) -> float:
    """Parse an option that takes a number; its bounds are checked where it is used."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return found


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return the `type` of an option that takes a whole number within bounds."""

    def whole(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least:,} to {most:,}")
        return int(text)

    return whole


def settings_given(arguments: argparse.Namespace) -> Mapping[str, object]:
    """Return the settings that were given as flags, by `section.name`: their options have that as destination."""
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in vars(arguments).items()
        if "." in key and value is not None
    }


def address_in(option: str, text: str) -> "HostPort":
    """Return the address in an option's value; raise `WrongUsage`."""
    from node.config.addresses import host_port  # noqa: PLC0415

    try:
        return host_port(text)
    except ValueError as error:
        raise WrongUsage(f"{option} is {text!r}: it {error}") from error


LIMITS: Mapping[str, str] = MappingProxyType(
    {
        "rpm": "requests a minute, evenly spread",
        "tpm": "input and output tokens a minute",
        "tokens_per_day": "tokens a UTC day",
        "concurrency": "concurrent requests",
    }
)
"""Limits of a key or a grant: whole numbers, 0 for none."""


MAX_RATE = 1_000_000_000
"""That of `node.auth.keys`, whose import would slow every --help down; a test compares them."""


def patterns_in(text: str) -> list[str]:
    """Return the patterns of models in a text, separated by commas or spaces."""
    return text.replace(",", " ").split()


def _patterns(text: str) -> list[str]:
    patterns = patterns_in(text)
    if not patterns:  # it must not mean all models
        raise argparse.ArgumentTypeError(f"{text!r} names no models")
    return patterns


def add_allowance(parser: argparse.ArgumentParser) -> None:
    """Declare the options for what a key or a grant allows."""
    add = parser.add_argument
    add(
        "--models",
        metavar="PATTERN",
        type=_patterns,
        action="extend",
        default=[],
        help="allowed models, repeatable: 'llama*', 'PROJECT/*', 'llama*,qwen*' (default: all)",
    )
    rate = whole_number(0, MAX_RATE)
    for name, text in LIMITS.items():
        flag = f"--{name.replace('_', '-')}"
        add(flag, metavar="N", type=rate, default=0, help=f"{text} (default: no limit)")
    add("--background", action="store_true", help="run its requests after all others")
