"""Create, list, replace and revoke keys of users; show the node's identity; create a swarm key.

`create` prints a user's key once; the node stores a hash. The key is valid at all nodes of the site, which share its store,
within a second. `show` without a name prints this node's peer id. The node creates its identity key at the first start; use
`new` only to learn the peer id beforehand. To give the node another identity, move the old key away. Nodes with one swarm key
connect only to each other; copy it to each of them over a secure channel.

Examples:
  modelvine key create ann --models 'llama*' --rpm 60 --tokens-per-day 2000000 --expires 30d
  modelvine key create bob --model-limit 'llama*:rpm=60,tpm=10000' --model-limit 'big:concurrency=1'
  (umask 077; modelvine key create --csv class.csv > keys.csv)
  modelvine key list
  modelvine key show ann
  modelvine key rotate ann
  modelvine key revoke ann
  modelvine key show
  modelvine key swarm swarm.key
"""

import argparse
from collections.abc import Callable, Mapping

from node.cli.console.options import (
    add_action,
    add_allowance,
    add_data_dir,
    add_json,
    add_node_options,
    settings_given,
)

ROLES = ("user", "viewer", "operator")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(
        title="commands",
        dest="action",
        metavar="{create,list,show,rotate,revoke,new,swarm}",
        required=True,
    )
    _configure_users(actions)
    _configure_nodes(actions)


def _configure_users(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare what is done with users' keys."""
    create = add_action(
        actions,
        "create",
        "Create a user's key, and print it once.",
        "(umask 077; modelvine key create ann --models 'llama*' --expires 30d > ann.key)",
        "modelvine key create bob --rpm 60 --model-limit 'llama*:rpm=20,tpm=10000'",
        "(umask 077; modelvine key create --csv class.csv > keys.csv)",
    )
    _configure_create(create)
    listed = add_action(
        actions, "list", "List users' keys, without the keys themselves.", "modelvine key list"
    )
    add_node_options(listed)
    add_json(listed)
    show = add_action(
        actions,
        "show",
        "Show the limits of a user's key, or this node's peer id.",
        "modelvine key show ann",
        "modelvine key show",
    )
    show.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        default="",
        help="name of the user (default: the node's own identity)",
    )
    add_node_options(show)
    add_json(show)
    for name, text in (
        ("rotate", "Replace a user's key, and print the new one once."),
        ("revoke", "Revoke a user's key at once."),
    ):
        action = add_action(actions, name, text, f"modelvine key {name} ann")
        action.add_argument("name", metavar="NAME", help="name of the user")
        add_node_options(action)
        add_json(action)


def _configure_nodes(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare what is done with keys of nodes."""
    new = add_action(
        actions,
        "new",
        "Create the node's identity key before its first start, and print its peer id.",
        "modelvine key new",
        "modelvine key new --json",
    )
    add_data_dir(new)
    add_json(new)
    swarm = add_action(
        actions,
        "swarm",
        "Create a file with a swarm key: nodes that have it connect only to each other.",
        "modelvine key swarm swarm.key",
    )
    swarm.add_argument("file", metavar="FILE", help="the new file")
    swarm.add_argument("--json", action="store_true", help="print JSON")


def _configure_create(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", nargs="?", default="", help="name of the user")
    add(
        "--csv",
        metavar="FILE",
        default="",
        help=(
            "create many keys: a table with the column name, and columns named after these options; other values as given "
            "here"
        ),
    )
    add_allowance(parser)
    add(
        "--role",
        choices=ROLES,
        default="user",
        help="user: use models; viewer: also read status and metrics; operator: also change the node (default: user)",
    )
    add(
        "--model-limit",
        metavar="LIMIT",
        action="append",
        default=[],
        help="limits of some models, repeatable: 'llama*:rpm=60,tpm=10000'",
    )
    add(
        "--expires",
        metavar="TIME",
        default="",
        help="expiry after this time: 12h, 30d, 1y (default: never)",
    )
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Existing keys are never printed."""
    from node.cli.console import user_keys  # noqa: PLC0415

    if arguments.action == "show" and not arguments.name:
        return _identity(arguments)
    actions: Mapping[str, Callable[[argparse.Namespace], int]] = {
        "new": _identity,
        "swarm": _swarm,
        "create": user_keys.create,
        "list": user_keys.show,
        "show": user_keys.show,
        "rotate": user_keys.rotate,
        "revoke": user_keys.revoke,
    }
    return actions[arguments.action](arguments)


def _identity(arguments: argparse.Namespace) -> int:
    from pathlib import Path  # noqa: PLC0415

    from node.cli.console.text import say_fields, say_json  # noqa: PLC0415
    from node.config import sources  # noqa: PLC0415
    from node.config.paths import IDENTITY_KEY  # noqa: PLC0415
    from node.errors import CommandFailed  # noqa: PLC0415
    from node.secrets import identity  # noqa: PLC0415

    data_dir = Path(sources.load(settings_given(arguments)).settings.node.data_dir)
    path = data_dir / IDENTITY_KEY
    try:
        loaded = identity.create(data_dir) if arguments.action == "new" else identity.load(data_dir)
    except FileNotFoundError:
        raise CommandFailed(
            f"there is no key {path} yet: `modelvine up` or `modelvine key new` creates it"
        ) from None
    except FileExistsError:
        raise CommandFailed(f"the key {path} already exists: move it away first") from None
    fields = {"peer": loaded.peer, "file": str(path)}
    if arguments.json:
        say_json(fields)
    else:
        say_fields(fields.items())
    return 0


def _swarm(arguments: argparse.Namespace) -> int:
    from pathlib import Path  # noqa: PLC0415

    from node.cli.console.text import plain, say_json  # noqa: PLC0415
    from node.errors import CommandFailed  # noqa: PLC0415
    from node.secrets import secret_files  # noqa: PLC0415

    path = Path(arguments.file)
    try:
        secret_files.write_new_swarm_key(path)
    except FileExistsError:
        raise CommandFailed(f"{path} already exists; move it away first") from None
    if arguments.json:
        say_json({"file": str(path)})
    else:
        print(
            plain(f"created {path}; copy it to every node and start each with --swarm-key {path}")
        )
    return 0
