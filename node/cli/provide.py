"""Provide a service that is made of inference, and register it at the local node.

`batch` gives OpenAI's files and batches to every node of the network: a file of requests is answered in the background, by
whoever serves their models, when nobody waits for those; so are rewards and synthetic data of Llama Stack.
It is a process of its own: files and results are in --data, and after a crash or a restart it goes on where it was.

`vectors` keeps texts and finds them by their meaning: OpenAI's vector stores, and memory banks of Llama Stack. Any node's
embeddings will do. It needs more of Python: pip install "modelvine[vectors]".

`agents` answers Llama Stack's POST /agents/execute with the models of the network. It keeps nothing and executes no tool: a
model's request for one comes back to whoever asks.

Providers with one --database (PostgreSQL; vectors need its extension pgvector) are one service: any of them answers for what
another has begun, and goes on with it where that one dies. It needs more of Python: pip install "modelvine[postgres]".

One line goes to standard output when the service is registered. Ctrl-C withdraws it.

Examples:
  modelvine provide batch
  modelvine provide batch --data /srv/batches --concurrency 16
  modelvine provide vectors --model nomic-embed-text
  modelvine provide batch --database postgresql://models@db.example/models
  modelvine provide agents
  # then, with OpenAI's client at any node:
  #   client.files.create(file=open("lines.jsonl", "rb"), purpose="batch")
  #   client.batches.create(input_file_id=…, endpoint="/v1/chat/completions", completion_window="24h")
"""

import argparse
from contextlib import suppress

from node.cli.console.options import add_node_options

SERVICES = ("batch", "vectors", "agents")
CONCURRENCY, MOST = 8, 256
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
        help="where its files are (default: `batch` in the node's data directory)",
    )
    add(
        "--concurrency",
        metavar="N",
        type=_count,
        default=CONCURRENCY,
        help=f"requests that are under way at one time (default: {CONCURRENCY})",
    )
    add(
        "--keep",
        metavar="GB",
        type=_count,
        default=KEEP,
        help=f"gigabytes of all its files (default: {KEEP})",
    )
    add(
        "--model",
        metavar="NAME",
        default="",
        help="vectors: the model of embeddings where a store names none (default: the first that is known)",
    )
    add(
        "--database",
        metavar="URL",
        default="",
        help="batch, vectors: the PostgreSQL that the providers of a site share, instead of files in --data; "
        "a password may be in ~/.pgpass",
    )
    add(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:0",
        help="where the node asks it (default: a free port)",
    )
    add(
        "--project",
        metavar="P",
        default="services",
        help="the project that it belongs to (default: services)",
    )
    add(
        "--name",
        metavar="NAME",
        default="",
        help="the name that it is registered by (default: SERVICE)",
    )
    add_node_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Provide until a signal comes."""
    import sys  # noqa: PLC0415
    from importlib import import_module  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.options import settings_given  # noqa: PLC0415
    from node.config import sources  # noqa: PLC0415
    from node.config.addresses import host_port  # noqa: PLC0415
    from node.errors import WrongUsage  # noqa: PLC0415
    from node.observe import logs  # noqa: PLC0415
    from node.provide import service  # noqa: PLC0415
    from node.provide.plan import ProviderPlan  # noqa: PLC0415

    settings = sources.load(settings_given(arguments)).settings.node
    logs.configure(
        form=settings.log_format, level=settings.log_level, colour=sources.wants_colour(sys.stderr)
    )
    try:
        place = host_port(arguments.listen)
    except ValueError as error:
        raise WrongUsage(f"--listen is {arguments.listen!r}: it {error}") from error
    if not place.loopback:
        raise WrongUsage(
            f"--listen {place} can be reached by other machines; they ask their own nodes"
        )
    if arguments.database and arguments.service == "agents":
        raise WrongUsage("agents keep nothing, so they have no --database")
    folder = Path(arguments.data or Path(settings.data_dir) / arguments.service)
    name = arguments.name or arguments.service
    plan = ProviderPlan(
        arguments.service,
        folder,
        place,
        arguments.project,
        name,
        arguments.concurrency,
        arguments.keep * 1000**3,
        arguments.model,
        arguments.database,
    )
    made = import_module(f"node.provide.{arguments.service}.provider").provider

    def ready(line: str) -> None:
        with suppress(OSError):  # whoever started us need not read
            print(line, flush=True)

    return service.run(plan, made, client(arguments), ready)


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MOST}")
    return int(text)
