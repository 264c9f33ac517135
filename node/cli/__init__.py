"""Command line: the dispatch to commands, and their exit codes. Each module of this folder is one command, found by its name.

A command module's docstring is its help: a first line, more text, and a paragraph that begins with `Examples:`. It
defines `configure(parser)` and `run(arguments)`, which returns the exit code: 0 done, 1 failed, 2 wrong usage. Modules
import what is heavy inside `run`, so that `modelvine --help` loads nothing but the standard library.
"""

import argparse
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol, cast

from node import __version__
from node.cli.console import streams
from node.cli.console.options import CommandParser, HelpFormatter
from node.compiled import is_compiled
from node.errors import NodeError, Refused, WrongSetting, WrongUsage

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg))
"""All commands: the modules of this folder. Its packages hold code that commands share."""

FAILED, WRONG_USAGE, INTERRUPTED, NOBODY_READS = 1, 2, 130, 141

_ABOUT = "Serve language models from many machines: run a node on each, and send requests to any of them."
_FIRST_STEPS = """\
Examples:
  # run a node on this machine
  modelvine up
  # offer a model that runs here
  modelvine register demo tiny http://127.0.0.1:8080
  # list the models of all nodes
  modelvine models
  # chat with it, at any node
  modelvine chat tiny "Why is the sky blue?"
"""


class Command(Protocol):
    """Interface of the modules of this folder."""

    __doc__: str | None

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do the work; return the exit code, or raise a `NodeError`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    # Plugins of pydantic would see requests; to look for them, it reads about each package that is installed here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    words = list(sys.argv[1:] if argv is None else argv)
    streams.prepare()
    try:
        try:
            code = _run(words)
        finally:
            sys.stdout.flush()
    except NodeError as error:
        code = WRONG_USAGE if isinstance(error, WrongSetting | WrongUsage) else FAILED
        _complain(error, code, as_json="--json" in _options(words))
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        streams.discard(sys.stdout.fileno())
        return NOBODY_READS
    return code


def _run(words: Sequence[str]) -> int:
    parser = build_parser()
    if not words:
        parser.print_help()
        return 0
    arguments = parser.parse(words)
    run = cast("Callable[[argparse.Namespace], int]", arguments.run)
    return run(arguments)


def _options(words: Sequence[str]) -> Sequence[str]:
    """Return the words that may be options: those before `--`."""
    return words[: words.index("--")] if "--" in words else words


def _complain(error: NodeError, code: int, *, as_json: bool) -> None:
    """Print an error on standard error, line by line or as one JSON object; parts may come from another machine."""
    from node.cli.console.text import json_text, note, plain  # noqa: PLC0415 - not needed for --help

    if as_json:
        fields = {"message": str(error), "type": type(error).__name__, "exit": code}
        if isinstance(error, Refused):
            fields |= {"status": error.status, "code": error.code}
        note(json_text({"error": fields}))
        return
    for line in str(error).splitlines():
        note(f"modelvine: {plain(line)}")


def _version() -> str:
    return f"modelvine {__version__} (compiled: {'yes' if is_compiled() else 'no'})"


def build_parser() -> CommandParser:
    """Return the parser of the whole command line."""
    parser = CommandParser(
        "modelvine",
        description=_ABOUT,
        epilog=_FIRST_STEPS,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in NAMES:
        command = cast("Command", import_module(f"{__name__}.{name}"))
        text, _, examples = (command.__doc__ or "").partition("Examples:")
        subparser = commands.add_parser(
            name.replace("_", "-"),
            help=text.partition("\n")[0].rstrip("."),
            description=text.strip(),
            epilog=f"Examples:{examples}",
            formatter_class=HelpFormatter,
        )
        command.configure(subparser)
        subparser.set_defaults(run=command.run)
    return parser
