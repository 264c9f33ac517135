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

SHELLS = ("bash", "fish", "zsh")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", metavar="{bash,fish,zsh}", choices=SHELLS, help="the shell")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    from node.cli import build_parser  # noqa: PLC0415 - which imports this module
    from node.cli.console import completions  # noqa: PLC0415

    print(completions.SCRIPTS[arguments.shell](build_parser()), end="")
    return 0
