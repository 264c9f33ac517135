"""Parser for a command's words: its options may stand before, between and after its positional arguments.

Left to itself, argparse settles the positional arguments at the first option behind one of them:
`chat llama --system TEXT PROMPT` had no PROMPT. Its own way out, `parse_intermixed_args`, does not know commands.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import NoReturn

from node.errors import WrongUsage

_END = "--"


class CommandParser(argparse.ArgumentParser):
    """A parser of the command line or of one command; what it cannot parse is a `WrongUsage`, not the end of the process."""

    def error(self, message: str) -> NoReturn:
        """Raise `WrongUsage`."""
        raise WrongUsage(message, usage=self.format_usage())

    @property
    def commands(self) -> Mapping[str, "CommandParser"]:
        """The commands within this one, by name."""
        return {name: inner for action in self._within for name, inner in action.choices.items()}

    @property
    def summaries(self) -> Mapping[str, str]:
        """What each of these commands does, in a line."""
        return {
            choice.dest: choice.help or ""
            for action in self._within
            for choice in action._choices_actions  # noqa: SLF001 - what --help lists
        }

    @property
    def _within(self) -> "list[argparse._SubParsersAction[CommandParser]]":
        kind = argparse._SubParsersAction  # noqa: SLF001 - argparse has no other name for it
        return [action for action in self._actions if isinstance(action, kind)]

    @property
    def options(self) -> Sequence[argparse.Action]:
        """What is named by a flag."""
        return [action for action in self._actions if action.option_strings]

    @property
    def positionals(self) -> Sequence[argparse.Action]:
        """What is named by its place; no commands."""
        return [a for a in self._actions if not a.option_strings and a not in self._within]

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Return what the words say; raise `WrongUsage`, with the usage of the command that is meant."""
        parser, place = self, 0
        for number, word in enumerate(words, 1):
            if word in parser.commands:
                parser, place = parser.commands[word], number
        found, unknown = self.parse_known_args([*words[:place], *parser.ordered(words[place:])])
        if named := [word for word in unknown if word != _END]:
            parser.error(f"unrecognized arguments: {' '.join(named)}")
        return found

    def ordered(self, words: Sequence[str]) -> list[str]:
        """Return the words of this command, options first, each in the order in which they stood."""
        options, others, left = list[str](), list[str](), list(words)
        while left:
            word = left.pop(0)
            if word == _END:
                others += left
                break
            if not self._is_option(word):
                others.append(word)
                continue
            options.append(word)
            if (
                self._takes_value(word)
                and left
                and left[0] != _END
                and not self._is_option(left[0])
            ):
                options.append(left.pop(0))
        return [*options, _END, *others] if any(map(self._is_option, others)) else options + others

    def _is_option(self, word: str) -> bool:
        """Whether argparse takes a word for an option: no text with blanks, no negative number."""
        name, _, _ = word.partition("=")
        if not word.startswith("-") or word == "-":
            return False
        if self._named(name):
            return True
        return " " not in word and not self._negative_number_matcher.match(word)

    def _takes_value(self, word: str) -> bool:
        return "=" not in word and any(action.nargs != 0 for action in self._named(word))

    def _named(self, flag: str) -> Sequence[argparse.Action]:
        """Return the options that a flag, or the beginning of one, may mean."""
        exact = [action for action in self.options if flag in action.option_strings]
        return exact or [
            action
            for action in self.options
            if flag.startswith("--")
            and any(full.startswith(flag) for full in action.option_strings)
        ]
