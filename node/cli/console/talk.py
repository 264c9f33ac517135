"""Terminal conversation: lines that are edited, commands that begin with a slash, and what Ctrl-C stops.

Lines are edited where Python has `readline`, with a history in memory only: nothing is stored but by /save.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from node.cli.console.conversation import Conversation, image, say_answer
from node.cli.console.text import note, plain
from node.cli.console.worker_options import value_of
from node.errors import CommandFailed, NodeError, WrongUsage

INTERRUPTED = 130


def converse(conversation: Conversation) -> int:
    """Ask what is typed, line by line, until Ctrl-D, or Ctrl-C twice; return the exit code."""
    with suppress(ImportError):  # not every Python has it: lines are the terminal's own, then
        import readline  # noqa: F401, PLC0415 - `input` edits lines once this is loaded
    talk = Talk(conversation)
    note("/help lists commands; Ctrl-C clears the line or stops an answer, Ctrl-D ends.")
    cleared = False
    while not talk.over:
        try:
            line = input("> ")
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            if cleared:
                return INTERRUPTED
            note("Ctrl-C again, or Ctrl-D, ends.")
            cleared = True
            continue
        cleared = False
        talk.hear(line)
    return 0


class Talk:
    """What is made of each line that is typed."""

    def __init__(self, conversation: Conversation) -> None:
        self.over = False
        self._with = conversation
        self._saved: set[str] = set()
        self._commands: dict[str, tuple[Callable[[str], None], str]] = {
            "help": (self._help, "this list"),
            "set": (self._set, "NAME VALUE: a parameter such as temperature; no VALUE: unset it; no NAME: list them"),
            "system": (self._system, "TEXT: what the model is told first; no TEXT: nothing"),
            "attach": (self._attach, "FILE: an image that goes with the next prompt"),
            "save": (self._save, "FILE: write the conversation so far to a new file, as a request in JSON"),
            "clear": (self._clear, "forget the conversation so far"),
            "exit": (self._exit, "end, as Ctrl-D does"),
        }  # fmt: skip

    def hear(self, line: str) -> None:
        """Do what a command says, or ask the model; say what fails, and go on."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                self._obey(line)
            elif line.strip():
                say_answer(self._with, line.removeprefix("/"))
        except KeyboardInterrupt:
            print()
            note("[stopped]")
        except NodeError as error:
            if isinstance(error, CommandFailed):
                print()
            note(plain(f"modelvine: {error}"))

    def _obey(self, line: str) -> None:
        name, _, rest = line[1:].partition(" ")
        if name not in self._commands:
            raise WrongUsage(
                f"there is no command /{name}: /help lists them, // begins a prompt with a slash"
            )
        self._commands[name][0](rest.strip())

    def _help(self, _: str) -> None:
        for name, (_command, what) in self._commands.items():
            note(f"  /{name:<7} {what}")

    def _set(self, said: str) -> None:
        parameters = self._with.parameters
        name, _, value = said.partition(" ")
        if value:
            parameters[name] = value_of(value.strip())
        elif name:
            parameters.pop(name, None)
        for key, held in parameters.items():
            note(plain(f"  {key} = {json.dumps(held, ensure_ascii=False)}"))
        if not parameters:
            note("  no parameter is set")

    def _system(self, text: str) -> None:
        self._with.system = text

    def _attach(self, file: str) -> None:
        self._with.attached.append(image(file))
        note(f"  {len(self._with.attached)} attached; they go with the next prompt")

    def _save(self, file: str) -> None:
        """Write for the user's eyes only, over nothing but what was saved here before."""
        if not file:
            raise WrongUsage("/save needs the name of a file")
        over = os.O_TRUNC if file in self._saved else os.O_EXCL
        content = json.dumps(self._with.body(), indent=2, ensure_ascii=False)
        try:
            with os.fdopen(
                os.open(Path(file).expanduser(), os.O_WRONLY | os.O_CREAT | over, 0o600),
                "w",
                errors="replace",
            ) as out:
                out.write(f"{content}\n")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise WrongUsage(f"{file} cannot be written: {why}") from error
        self._saved.add(file)
        note(plain(f"  saved {file}"))

    def _clear(self, _: str) -> None:
        self._with.turns.clear()
        self._with.attached.clear()

    def _exit(self, _: str) -> None:
        self.over = True
