"""Show every setting that holds, and where its value comes from.

Defaults < profile < settings file < environment < flags. With the flags of `modelvine up` it shows what they would lead
to. Passwords are masked.

Examples:
  modelvine config show
  modelvine config show --profile wan
  MODELVINE_STORE=memory modelvine config show --json
"""

import argparse

from node.cli.console.options import add_json, add_settings, settings_given


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(title="what to do", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print the settings")
    add_settings(show)
    add_json(show)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings."""
    from node import config  # noqa: PLC0415
    from node.cli.console.text import say_json, say_table  # noqa: PLC0415

    rows = config.load(settings_given(arguments), file=arguments.config).rows()
    if arguments.json:
        say_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
        return 0
    say_table(
        ("SETTING", "VALUE", "FROM"),
        ((key, _shown(value), origin) for key, value, origin in rows),
        none="",
    )
    return 0


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "-"
