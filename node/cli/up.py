r"""Run a node in the foreground.

When the node is ready, it prints one line to standard output: `ready http=URL p2p=MULTIADDR`. The log goes to standard error.
SIGTERM, Ctrl-C and a closed terminal (SIGHUP, which nohup turns off) let requests in flight finish; a second signal stops the
node at once. Each option is also an environment variable (MODELVINE_HTTP for --http) and a key of modelvine.toml;
`modelvine config show` lists them all.

Examples:
  modelvine up
  # a second node on this machine, which joins the first
  modelvine up --http 127.0.0.1:0 --listen /ip4/127.0.0.1/tcp/0 --data-dir /tmp/second \
    --bootstrap /ip4/127.0.0.1/tcp/6101/p2p/12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA
  modelvine up --profile lan --swarm-key swarm.key
  modelvine up --profile wan --relay
  modelvine up --workers 4
  modelvine up --profile wan --join @invitation
  modelvine up --profile wan \
    --rendezvous /ip4/192.0.2.7/tcp/6101/p2p/12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA
"""

import argparse
import logging
from pathlib import Path

from node.cli.console.options import settings_given
from node.cli.console.setting_options import add_settings

log = logging.getLogger("modelvine.node")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_settings(parser)
    parser.add_argument(
        "--join",
        metavar="INVITATION",
        default="",
        help="join a mesh by an invitation (`modelvine invite --for-node`): its text, @FILE, - for standard input, or "
        "MODELVINE_JOIN; the node stores it, so pass it once",
    )


def run(arguments: argparse.Namespace) -> int:
    """Check the settings, lock the data directory, and hand over to the composition root."""
    import gc  # noqa: PLC0415

    from node.cli.console.streams import say_ready  # noqa: PLC0415
    from node.config import sources  # noqa: PLC0415
    from node.observe import logs  # noqa: PLC0415
    from node.runtime import hold_data_dir_lock, require_threads  # noqa: PLC0415
    from node.secrets import identity, joined, secret_files  # noqa: PLC0415

    settings = sources.load(settings_given(arguments), file=arguments.config).settings
    logs.configure_as(settings.node)
    swarm_key = None
    if settings.node.swarm_key:
        swarm_key = secret_files.read_swarm_key(Path(settings.node.swarm_key))
    data_dir = Path(settings.node.data_dir)
    secret_files.make_private_directory(data_dir)
    require_threads()
    with hold_data_dir_lock(data_dir):
        if argument := arguments.join or sources.configured_invitation():
            joined.save_invitation(data_dir, joined.read_argument(argument))
        own_identity = identity.load_or_create(data_dir)
        grant = ""
        if invitation := joined.load_invitation(data_dir):
            settings = joined.with_invitation(settings, invitation, data_dir)
            swarm_key = swarm_key or invitation.swarm_key or None
            grant = joined.seal_grant(invitation, own_identity.peer)
            if not grant:
                log.warning(
                    "the grant of this node's invitation has expired: nodes that require a grant refuse its requests"
                )
        identity.control_token(data_dir)

        # Almost nothing allocated before a node serves is garbage; collecting it took a fifth of the start.
        gc.disable()
        # The mesh library logs while it is imported, so logging comes first.
        from node import run as composition  # noqa: PLC0415
        from node.cli.console.node_lookup import leave_trace, remove_trace  # noqa: PLC0415

        def ready(line: str) -> None:
            say_ready(line)
            fields = dict(part.partition("=")[::2] for part in line.split())
            try:
                certificate = settings.node.tls_cert
                leave_trace(
                    data_dir, url=fields["http"], peer=own_identity.peer, certificate=certificate
                )
            except OSError as error:
                log.warning(
                    "commands on this machine need the address of this node (--node): %s", error
                )

        try:
            return composition.run(
                settings, own_identity, swarm_key, data_dir, grant=grant, ready=ready
            )
        finally:
            remove_trace(data_dir)
