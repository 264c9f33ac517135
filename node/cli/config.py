"""Show all settings with their sources, or the load-balancing policies.

Later sources override earlier ones: defaults, profile, settings file, environment, flags. With flags of `modelvine up`, it shows
their effect. Passwords are masked.

Examples:
  modelvine config show
  modelvine config show --profile wan
  MODELVINE_STORE=memory modelvine config show --json
  modelvine config policies
"""

import argparse
from collections.abc import Iterable

from node.cli.console.options import add_action, add_json, add_wide, settings_given
from node.cli.console.setting_options import add_settings


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(
        title="commands", metavar="{show,policies}", required=True, dest="action"
    )
    for name, about in (
        ("show", "Show all settings with their sources."),
        ("policies", "List the load-balancing policies, and mark the one in use (router.policy)."),
    ):
        lines = (
            f"modelvine config {name}",
            f"modelvine config {name} --profile wan --json",
        )
        action = add_action(actions, name, about, *lines)
        add_settings(action)
        add_wide(action)
        add_json(action)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings, or the policies."""
    from node.config import sources  # noqa: PLC0415

    rows = sources.load(settings_given(arguments), file=arguments.config).rows()
    if arguments.action == "policies":
        _say_policies({key: value for key, value, _ in rows}["router.policy"], arguments)
    else:
        _say_settings(rows, arguments)
    return 0


def _say_policies(chosen: object, arguments: argparse.Namespace) -> None:
    from node.cli.console.text import say_json, say_table  # noqa: PLC0415
    from router import policies  # noqa: PLC0415

    summaries = {name: policies.summary(name) for name in policies.NAMES}
    if arguments.json:
        say_json({"policy": chosen, "policies": summaries})
        return
    say_table(
        ("", "POLICY", "WHAT IT DOES"),
        (("*" if name == chosen else "", name, summary) for name, summary in summaries.items()),
        none="",
        wide=arguments.wide,
    )


def _say_settings(rows: Iterable[tuple[str, object, str]], arguments: argparse.Namespace) -> None:
    from node.cli.console.text import say_json, say_table  # noqa: PLC0415

    if arguments.json:
        say_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
        return
    say_table(
        ("SETTING", "VALUE", "FROM"),
        ((key, _shown(value), origin) for key, value, origin in rows),
        none="",
        wide=arguments.wide,
    )


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "-"
