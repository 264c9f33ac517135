"""Print a completion script for a shell: commands, options, values, files and model names.

`source <(modelvine completion bash)` enables it in the current shell; the examples enable it permanently. Create the script
again after an upgrade. The Tab key requests model names from the local node; names with special characters are omitted.

Examples:
  # bash, after: mkdir -p ~/.local/share/bash-completion/completions
  modelvine completion bash > ~/.local/share/bash-completion/completions/modelvine
  # zsh: in a folder of $fpath, after: mkdir -p ~/.zfunc
  modelvine completion zsh > ~/.zfunc/_modelvine
  # fish, after: mkdir -p ~/.config/fish/completions
  modelvine completion fish > ~/.config/fish/completions/modelvine.fish
"""

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from node.cli.console.options import CommandParser
from node.cli.console.worker_options import MODALITIES, TYPES


class ValueSource(Enum):
    """Source of an argument's values, where they are not a fixed list."""

    FILES = "files"
    MODELS = "models"
    NOBODY_KNOWS = ""


@dataclass(frozen=True, slots=True)
class Argument:
    """One option, or one positional argument, which has no flags; `values` is `None` for an option without a value."""

    name: str
    flags: Sequence[str]
    about: str
    values: Sequence[str] | ValueSource | None
    repeatable: bool = False

    @property
    def listed(self) -> Sequence[str]:
        """Its values, if they are a fixed list."""
        return () if self.values is None or isinstance(self.values, ValueSource) else self.values


@dataclass(frozen=True, slots=True)
class CommandWords:
    """One command: the words that lead to it, its subcommands, its arguments."""

    path: Sequence[str]
    commands: Mapping[str, str]
    arguments: Sequence[Argument]

    @property
    def options(self) -> Sequence[Argument]:
        """The arguments that have flags."""
        return [argument for argument in self.arguments if argument.flags]

    @property
    def asks_for_a_model(self) -> bool:
        """Whether its first positional argument is a model's name."""
        return any(a.values is ValueSource.MODELS for a in self.arguments)


_MODEL = "MODEL"
_PATHS = ("FILE", "DIR")
_LISTS = {"type": TYPES, "takes": MODALITIES}
_HARMLESS = "A-Za-z0-9._/:@+-"


def commands_of(parser: CommandParser, *path: str) -> Iterator[CommandWords]:
    """Yield a command and all its subcommands."""
    options = [_argument(action, first=False) for action in parser.options]
    positionals = [
        _argument(action, first=not index) for index, action in enumerate(parser.positionals)
    ]
    yield CommandWords(path, parser.summaries, [*options, *positionals])
    for name, inner in parser.commands.items():
        yield from commands_of(inner, *path, name)


def _argument(action: argparse.Action, *, first: bool) -> Argument:
    name = str(action.metavar or action.dest)
    about = " ".join((action.help or "").replace("%%", "%").split())
    # argparse has no public name for it.
    many = isinstance(action, argparse._AppendAction)  # noqa: SLF001
    return Argument(
        name, action.option_strings, about, _values(action, name, first=first), repeatable=many
    )


def _values(
    action: argparse.Action, name: str, *, first: bool
) -> Sequence[str] | ValueSource | None:
    if action.nargs == 0:
        return None
    if action.choices:
        return [str(choice) for choice in action.choices]
    if name.startswith("{"):
        return name.strip("{}").split(",")
    if name in _PATHS:
        return ValueSource.FILES
    if first and name == _MODEL:
        return ValueSource.MODELS
    return _LISTS.get(action.dest, ValueSource.NOBODY_KNOWS)


def bash(parser: CommandParser) -> str:
    """Return the script for bash."""
    commands = list(commands_of(parser))
    paths = "|".join(_quoted(_path(command)) for command in commands if command.path)
    # Code that completes a value, with every option that it completes.
    values: dict[str, list[str]] = {}
    for command in commands:
        for argument in command.options:
            if argument.values is not None:
                flags = [_quoted(f"{_path(command)}:{flag}") for flag in argument.flags]
                values.setdefault(_bash_values(argument), []).extend(flags)
    cases = "".join(f"  {'|'.join(flags)}) {how}return ;;\n" for how, flags in values.items())
    branches = "".join(
        f"  {_quoted(_path(command))}) words={_quoted(_words(command))}{_bash_models(command)} ;;\n"
        for command in commands
    )
    return f"""\
# bash completion for modelvine, made by `modelvine completion bash`
_modelvine_models() {{
  local name
  while read -r name _; do
    for name in "$name" "${{name#*/}}"; do
      [[ $name != "$cur"* || $name =~ [^{_HARMLESS}] ]] || COMPREPLY+=("$name")
    done
  done < <("${{COMP_WORDS[0]}}" models 2>/dev/null </dev/null | sed 1d)
}}
_modelvine_files() {{
  local IFS=$'\\n'
  COMPREPLY=($(compgen -f -- "$cur"))
  compopt -o filenames 2>/dev/null
}}
_modelvine() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} path= words= i
  COMPREPLY=()
  # bash takes --option=value for three words.
  if [[ $cur == = ]]; then cur=; elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$path ${{COMP_WORDS[i]}}" in
    {paths}) path+=" ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$path:$before" in
{cases}  esac
  case "$path" in
{branches}  esac
  COMPREPLY+=($(compgen -W "$words" -- "$cur"))
}}
complete -F _modelvine modelvine
"""


def _path(command: CommandWords) -> str:
    return "".join(f" {name}" for name in command.path)


def _words(command: CommandWords) -> str:
    flags = [flag for argument in command.options for flag in argument.flags]
    listed = [value for a in command.arguments if not a.flags for value in a.listed]
    return " ".join([*command.commands, *listed, *flags])


def _bash_values(argument: Argument) -> str:
    if argument.values is ValueSource.FILES:
        return "_modelvine_files; "
    if argument.listed:
        return f'COMPREPLY=($(compgen -W {_quoted(" ".join(argument.listed))} -- "$cur")); '
    return ""


def _bash_models(command: CommandWords) -> str:
    return "; [[ $cur == -* ]] || _modelvine_models" if command.asks_for_a_model else ""


def zsh(parser: CommandParser) -> str:
    """Return the script for zsh: a file `_modelvine` in a folder of $fpath, or sourced."""
    functions = "\n".join(_zsh_function(command) for command in commands_of(parser))
    return f"""\
#compdef modelvine
# zsh completion for modelvine, made by `modelvine completion zsh`
_modelvine_models() {{
  local -a names
  names=(${{(f)"$(_call_program models modelvine models 2>/dev/null </dev/null | sed 1d | cut -d ' ' -f 1)"}})
  names=(${{names:#*[^{_HARMLESS}]*}})
  compadd -a names
  names=(${{names#*/}})
  compadd -a names
}}

{functions}
if [[ ${{funcstack[1]}} == _modelvine ]]; then _modelvine "$@"; else compdef _modelvine modelvine; fi
"""


def _zsh_function(command: CommandWords) -> str:
    name = "_".join(("_modelvine", *command.path))
    specs = [_quoted(spec) for argument in command.arguments for spec in _zsh_specs(argument)]
    if not command.commands:
        body = " \\\n    ".join(["_arguments -S", *specs])
        return f"{name}() {{\n  {body}\n}}\n"
    listed = "\n      ".join(
        _quoted(f"{word}:{_zsh_plain(about)}") for word, about in command.commands.items()
    )
    specs = [*specs, "'1: :->command'", "'*:: :->words'"]
    joined = " \\\n    ".join(["_arguments -C", *specs])
    return f"""\
{name}() {{
  local state line
  {joined}
  case $state in
  command)
    local -a commands=(
      {listed}
    )
    _describe command commands ;;
  words) (( $+functions[{name}_$words[1]] )) && {name}_$words[1] ;;
  esac
}}
"""


def _zsh_specs(argument: Argument) -> Iterator[str]:
    about = _zsh_plain(argument.about).replace("[", "\\[").replace("]", "\\]")
    takes_value = argument.values is not None
    value = f":{_zsh_plain(argument.name)}:{_zsh_values(argument)}" if takes_value else ""
    if not argument.flags:
        yield f":{value}"
    flag_group = f"({' '.join(argument.flags)})" if len(argument.flags) > 1 else ""
    for flag in argument.flags:
        equals = "=" if takes_value and flag.startswith("--") else ""
        yield f"{'*' if argument.repeatable else flag_group}{flag}{equals}[{about}]{value}"


def _zsh_values(argument: Argument) -> str:
    if argument.listed:
        return f"({' '.join(argument.listed)})"
    completers = {ValueSource.FILES: "_files", ValueSource.MODELS: "_modelvine_models"}
    return next((how for source, how in completers.items() if argument.values is source), " ")


def _zsh_plain(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:")


def fish(parser: CommandParser) -> str:
    """Return the script for fish."""
    lines = [line for command in commands_of(parser) for line in _fish_lines(command)]
    return "\n".join(
        (
            "# fish completion for modelvine, made by `modelvine completion fish`",
            "function __modelvine_models",
            "    for name in (modelvine models 2>/dev/null </dev/null | sed 1d | cut -d ' ' -f 1)",
            f"        string match -qr '^[{_HARMLESS}]+$' -- $name; or continue",
            "        echo $name",
            "        string replace -r '^[^/]*/' '' -- $name",
            "    end",
            "end",
            "complete -c modelvine -f",
            *lines,
            "",
        )
    )


def _fish_lines(command: CommandWords) -> Iterator[str]:
    conditions = [f"__fish_seen_subcommand_from {name}" for name in command.path]
    none = [f"not __fish_seen_subcommand_from {' '.join(command.commands)}"]
    here = "; and ".join(conditions + none if command.commands else conditions)
    begin = f"complete -c modelvine -n {_fish_quoted(here)}"
    for name, about in command.commands.items():
        yield f"{begin} -a {name} -d {_fish_quoted(about)}"
    for argument in command.arguments:
        flags = " ".join(
            f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            for flag in argument.flags
        )
        value_flags = f" {_fish_values(argument)}" if argument.values is not None else ""
        if flags:
            yield f"{begin} {flags}{value_flags} -d {_fish_quoted(argument.about)}"
        elif value_flags.strip(" -x"):
            yield f"{begin}{value_flags.replace(' -x', '')}"


def _fish_values(argument: Argument) -> str:
    if argument.values is ValueSource.FILES:
        return "-r -F"
    if argument.values is ValueSource.MODELS:
        return "-x -a '(__modelvine_models)'"
    return f"-x -a {_fish_quoted(' '.join(argument.listed))}" if argument.listed else "-x"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _quoted(text: str) -> str:
    return shlex.quote(text)


SCRIPTS: Mapping[str, Callable[[CommandParser], str]] = MappingProxyType(
    {"bash": bash, "fish": fish, "zsh": zsh}
)


SHELLS = ("bash", "fish", "zsh")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", metavar="{bash,fish,zsh}", choices=SHELLS, help="the shell")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    from node.cli import build_parser  # noqa: PLC0415 - which imports this module

    print(SCRIPTS[arguments.shell](build_parser()), end="")
    return 0
