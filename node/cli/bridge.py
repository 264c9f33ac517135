"""Serve clients of one protocol with a server of another, without a mesh.

The scheme of --upstream sets the server's protocol, as for `register`. To offer the bridge to a mesh, register it as a worker.
When it is ready, it prints one line to standard output: `ready PROTOCOL=HOST:PORT upstream=URL models=NAMES`.

Examples:
  modelvine bridge --dialect tgi --upstream http://127.0.0.1:8080
  modelvine bridge --dialect localai --upstream http://127.0.0.1:8080 --listen 127.0.0.1:50052
  modelvine bridge --dialect remotellm --upstream tgi+http://127.0.0.1:3000 --model llama
  modelvine bridge --dialect anthropic --upstream http://127.0.0.1:8080 --listen 127.0.0.1:8082
"""

import argparse

from node.cli.console.worker_options import add_header

# The names of `node.bridge.NAMES`, whose import would slow every --help down; a test compares them.
DIALECTS = ("anthropic", "llamastack", "localai", "openai", "remotellm", "responses", "tgi")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("--dialect", required=True, choices=DIALECTS, metavar="D", help=", ".join(DIALECTS))
    add("--upstream", required=True, metavar="URL", help="URL of the server")
    add(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:0",
        help="address for clients (default: any free port of 127.0.0.1)",
    )
    add(
        "--model",
        metavar="NAME",
        action="append",
        default=[],
        help="model of the server, repeatable; clients that name none get the first (default: all that it lists)",
    )
    add_header(parser)
    add("--config", metavar="FILE", default="", help="settings file (default: ./modelvine.toml)")
    add(
        "--open",
        dest="node.open",
        action="store_const",
        const="everybody",
        help="allow clients of other machines, without a key",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the bridge until a signal arrives."""
    from node import bridge  # noqa: PLC0415
    from node.cli.console.options import address_in, settings_given  # noqa: PLC0415
    from node.cli.console.streams import say_ready  # noqa: PLC0415
    from node.config import sources  # noqa: PLC0415
    from node.config.settings import KeylessAccess  # noqa: PLC0415
    from node.errors import WrongUsage  # noqa: PLC0415
    from node.observe import logs  # noqa: PLC0415

    settings = sources.load(settings_given(arguments), file=arguments.config).settings
    logs.configure_as(settings.node)
    address = address_in("--listen", arguments.listen)
    if not address.is_loopback and settings.node.open is not KeylessAccess.EVERYBODY:
        raise WrongUsage(
            f"--listen {address} can be reached by other machines, and a bridge requires no key: pass --open to allow this"
        )

    models, headers = tuple(arguments.model), dict(arguments.header)
    plan = bridge.BridgePlan(arguments.dialect, arguments.upstream, address, models, headers)
    return bridge.run(plan, settings, say_ready)
