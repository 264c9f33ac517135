"""Show or make this node's identity key, or make a private swarm's key.

The identity key is made at the first start, so `new` is needed only to know the peer id beforehand. A key is never
replaced: to become another node, move the old one away. Nodes with one swarm key connect only to each other; copy it to
each of them by a safe way.

Examples:
  modelvine key show
  modelvine key new --data-dir second
  modelvine key swarm swarm.key
"""

import argparse

from node.cli.console.options import add_data_dir, add_json, settings_given


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(
        title="what to do", dest="action", metavar="{show,new,swarm}", required=True
    )
    for name, text in (
        ("show", "print the peer id"),
        ("new", "make the identity key, unless there is one"),
    ):
        action = actions.add_parser(name, help=text)
        add_data_dir(action)
        add_json(action)
    swarm = actions.add_parser("swarm", help="make a private swarm's key")
    swarm.add_argument("file", metavar="FILE", help="the new file")
    swarm.add_argument("--json", action="store_true", help="print JSON, for machines")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; the keys themselves are never printed."""
    return _swarm(arguments) if arguments.action == "swarm" else _identity(arguments)


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
        own = identity.create(data_dir) if arguments.action == "new" else identity.load(data_dir)
    except FileNotFoundError:
        raise CommandFailed(
            f"there is no key {path} yet: `modelvine up` or `modelvine key new` makes one"
        ) from None
    except FileExistsError:
        raise CommandFailed(
            f"there is a key {path} already, and it is never replaced: move it away first"
        ) from None
    found = {"peer": own.peer, "file": str(path)}
    if arguments.json:
        say_json(found)
    else:
        say_fields(found.items())
    return 0


def _swarm(arguments: argparse.Namespace) -> int:
    from pathlib import Path  # noqa: PLC0415

    from node.cli.console.text import plain, say_json  # noqa: PLC0415
    from node.errors import CommandFailed  # noqa: PLC0415
    from node.secrets import files as secret_files  # noqa: PLC0415

    path = Path(arguments.file)
    try:
        secret_files.write_new_swarm_key(path)
    except FileExistsError:
        raise CommandFailed(f"{path} exists already, and a key is never replaced") from None
    if arguments.json:
        say_json({"file": str(path)})
    else:
        print(plain(f"made {path}; copy it to every node and start each with --swarm-key {path}"))
    return 0
