"""Options of `modelvine up` that are settings; `config` and `doctor` take them too.

Each has the setting's name, `section.name`, as its destination, so that the parsed options are a layer of the configuration.
"""

import argparse

from node.cli.console.options import add_data_dir


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Declare all settings that can be given on the command line of `up`."""
    add = parser.add_argument
    add("--config", metavar="FILE", default="", help="settings file (default: ./modelvine.toml)")
    add(
        "--profile",
        dest="node.profile",
        metavar="{local,lan,wan}",
        help="defaults for one machine, one network or several (default: local)",
    )
    add(
        "--name",
        dest="node.name",
        metavar="NAME",
        help="name of this node, which other nodes see (default: the host name)",
    )
    _add_listening(parser)
    _add_meeting(parser)
    add(
        "--store",
        dest="node.store",
        metavar="STORE",
        help="where registrations, keys and usage are kept: memory, sqlite, redis://HOST:PORT/N or "
        "postgresql://HOST:PORT/DATABASE (default: sqlite)",
    )
    add(
        "--swarm-key",
        dest="node.swarm_key",
        metavar="FILE",
        help="connect only to nodes that have the same key (default: to any node)",
    )
    add(
        "--workers",
        dest="node.workers",
        metavar="N",
        help="processes that serve as one node (default: 1)",
    )
    add(
        "--usage-days",
        dest="node.usage_days",
        metavar="N",
        help="days to keep usage and receipts (default: 35)",
    )
    add(
        "--prices",
        dest="node.prices",
        metavar="PATTERN=INPUT/OUTPUT",
        action="append",
        help="prices of a million input and output tokens of matching models, repeatable: 'llama*=0.2/0.6'",
    )
    add(
        "--drain-timeout",
        dest="node.drain_timeout",
        metavar="S",
        help="seconds that requests in flight may take to finish when the node stops (default: 30)",
    )
    _add_told(parser)
    add_data_dir(parser)


def _add_told(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--log-format",
        dest="node.log_format",
        metavar="{console,json}",
        help="log for people or for programs (default: console)",
    )
    add(
        "--log-level",
        dest="node.log_level",
        metavar="{debug,info,warning,error}",
        help="lowest level to log (default: info)",
    )
    add(
        "--traces",
        dest="node.traces",
        metavar="URL",
        help="URL of an OpenTelemetry collector, such as http://127.0.0.1:4318/v1/traces (default: none)",
    )
    add(
        "--trace-share",
        dest="node.trace_share",
        metavar="SHARE",
        help="share of requests to trace, from 0 to 1, unless their traceparent header decides (default: 1)",
    )


def _add_listening(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--http",
        dest="node.http",
        metavar="HOST:PORT",
        help="address of the HTTP server; port 0: any free port (default: 127.0.0.1:6100)",
    )
    add(
        "--open",
        dest="node.open",
        metavar="CALLERS",
        nargs="?",
        const="everybody",
        help="callers that need no key: nobody, machine (users of this machine) or everybody (default: machine, if "
        "other machines cannot reach the HTTP server; otherwise you must choose; --open alone: everybody)",
    )
    add(
        "--tls-cert",
        dest="node.tls_cert",
        metavar="FILE",
        help="PEM file with a certificate and its chain; turns on HTTPS",
    )
    add("--tls-key", dest="node.tls_key", metavar="FILE", help="PEM file with its private key")
    add(
        "--link",
        dest="node.link",
        metavar="HOST:PORT",
        help="address of the HTTPS server for other nodes (default: the host of --listen, any free port)",
    )
    add(
        "--trusted-issuers",
        dest="node.trusted_issuers",
        metavar="PEER",
        action="append",
        help="peer id of a node of another site whose grants are accepted; repeatable",
    )
    add(
        "--peers-need-grant",
        dest="node.peers_need_grant",
        action="store_true",
        default=None,
        help="require a grant for requests from other nodes (modelvine invite --for-node)",
    )


def _add_meeting(parser: argparse.ArgumentParser) -> None:
    """Declare the settings of the mesh's addresses, and of how nodes find each other."""
    add = parser.add_argument
    add(
        "--listen",
        dest="mesh.listen",
        metavar="MULTIADDR",
        action="append",
        help="libp2p address to listen on, repeatable (default: /ip4/127.0.0.1/tcp/6101; with profile lan or wan "
        "/ip4/0.0.0.0/tcp/6101)",
    )
    add(
        "--announce",
        dest="mesh.announce",
        metavar="MULTIADDR",
        action="append",
        help="libp2p address at which other nodes reach this one, repeatable (default: detected)",
    )
    add(
        "--bootstrap",
        dest="mesh.bootstrap",
        metavar="MULTIADDR",
        action="append",
        help="libp2p address of a node to join, ending in /p2p/PEER; repeatable",
    )
    add(
        "--nat",
        dest="mesh.nat",
        metavar="{auto,yes,no}",
        help="whether this node is behind a NAT and needs a relay (default: auto, by asking other nodes)",
    )
    add(
        "--relay",
        dest="mesh.relay",
        action="store_true",
        default=None,
        help="forward traffic for nodes that cannot be dialled",
    )
    add(
        "--rendezvous",
        dest="mesh.rendezvous",
        metavar="MULTIADDR",
        action="append",
        help="libp2p address of a node with --rendezvous-point, at which to find other nodes; repeatable",
    )
    add(
        "--rendezvous-point",
        dest="mesh.rendezvous_point",
        action="store_true",
        default=None,
        help="tell nodes of a mesh each other's addresses",
    )
    add(
        "--mdns",
        dest="mesh.mdns",
        action=argparse.BooleanOptionalAction,
        help="find nodes on the local network, and be found (default: on in profile lan, else off)",
    )
