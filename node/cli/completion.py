"""Print a script with which a shell completes commands, options, their values, files, and names of models.

`source <(modelvine completion bash)` has this bash complete; the examples are for every shell to come. The script is made of the
commands of this version: make it again after an upgrade. Names of models are asked of the local node when the Tab key is pressed;
those with characters that mean something to a shell are left out.

Examples:
  # bash
  modelvine completion bash > ~/.local/share/bash-completion/completions/modelvine
  # zsh: in a folder of $fpath
  modelvine completion zsh > ~/.zfunc/_modelvine
  # fish
  modelvine completion fish > ~/.config/fish/completions/modelvine.fish
"""

import argparse

SHELLS = ("bash", "fish", "zsh")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", metavar="{bash,fish,zsh}", choices=SHELLS, help="whose script")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    from node.cli import build_parser  # noqa: PLC0415 - which imports this module
    from node.cli.console import completions  # noqa: PLC0415

    print(completions.SCRIPTS[arguments.shell](build_parser()), end="")
    return 0
