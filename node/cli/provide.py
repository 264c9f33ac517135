"""Provide a service that is built on inference, and register it at the local node.

`batch` provides OpenAI's files and batches at every node: it runs files of requests in the background, with low priority. It also
provides rewards and synthetic data of Llama Stack. Files and results are in --data; after a restart it continues.

`vectors` provides OpenAI's vector stores and memory banks of Llama Stack, with embeddings of any node. It needs the extra
`vectors` (make extras).

`agents` answers Llama Stack's POST /agents/execute with the models of the mesh. It stores nothing and runs no tools: a model's
tool request is returned to the caller.

Providers that share a --database (PostgreSQL; vectors need its extension pgvector) are one service: each answers for all, and
continues the work of one that dies. This needs the extra `postgres`. When the service is registered, one line goes to standard
output. Ctrl-C, SIGTERM or a closed terminal withdraws it.

Examples:
  modelvine provide batch
  modelvine provide batch --data /srv/batches --concurrency 16
  modelvine provide vectors --model nomic-embed-text
  modelvine provide batch --database postgresql://models@db.example/models
  modelvine provide agents
  # then, with OpenAI's client at any node:
  #   client.files.create(file=open("lines.jsonl", "rb"), purpose="batch")
  #   client.batches.create(
  #       input_file_id=…, endpoint="/v1/chat/completions", completion_window="24h")
"""

import argparse

from node.cli.console.options import add_node_options, whole_number

SERVICES = ("batch", "vectors", "agents")
CONCURRENCY, MAX_CONCURRENCY = 8, 256
KEEP = 20
"""Gigabytes of `node.provide.files.KEEP`, whose import would slow every --help down; a test compares them."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("service", metavar="SERVICE", choices=SERVICES, help=", ".join(SERVICES))
    add(
        "--data",
        metavar="DIR",
        default="",
        help="directory of its files (default: `batch` in the node's data directory)",
    )
    add(
        "--concurrency",
        metavar="N",
        type=whole_number(1, MAX_CONCURRENCY),
        default=CONCURRENCY,
        help=f"concurrent requests (default: {CONCURRENCY})",
    )
    add(
        "--keep",
        metavar="GB",
        type=whole_number(1, MAX_CONCURRENCY),
        default=KEEP,
        help=f"maximum size of all files in gigabytes (default: {KEEP})",
    )
    add(
        "--model",
        metavar="NAME",
        default="",
        help="vectors: default embedding model (default: the first known one)",
    )
    add(
        "--database",
        metavar="URL",
        default="",
        help=(
            "batch, vectors: PostgreSQL database that several providers share, in place of --data; the password may be in "
            "~/.pgpass"
        ),
    )
    add(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:0",
        help="address for the node (default: a free port)",
    )
    add(
        "--project",
        metavar="P",
        default="services",
        help="project of the service (default: services)",
    )
    add(
        "--name",
        metavar="NAME",
        default="",
        help="name of the registration (default: SERVICE)",
    )
    add_node_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Provide the service until a signal arrives."""
    from importlib import import_module  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.options import address_in, settings_given  # noqa: PLC0415
    from node.cli.console.streams import say_ready  # noqa: PLC0415
    from node.config import sources  # noqa: PLC0415
    from node.errors import WrongUsage  # noqa: PLC0415
    from node.observe import logs  # noqa: PLC0415
    from node.provide import service  # noqa: PLC0415
    from node.provide.plan import ProviderPlan  # noqa: PLC0415

    settings = sources.load(settings_given(arguments)).settings.node
    logs.configure_as(settings)
    address = address_in("--listen", arguments.listen)
    if not address.is_loopback:
        raise WrongUsage(
            f"--listen {address} can be reached by other machines; callers must use their own nodes"
        )
    if arguments.database and arguments.service == "agents":
        raise WrongUsage("agents store nothing, so they have no --database")
    folder = Path(arguments.data or Path(settings.data_dir) / arguments.service)
    name = arguments.name or arguments.service
    plan = ProviderPlan(
        arguments.service,
        folder,
        address,
        arguments.project,
        name,
        arguments.concurrency,
        arguments.keep * 1000**3,
        arguments.model,
        arguments.database,
    )
    provider = import_module(f"node.provide.{arguments.service}").provider

    return service.run(plan, provider, client(arguments), say_ready)
