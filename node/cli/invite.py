"""Create an invitation for a user or another node: one string with a grant, for a limited time.

This node signs the grant. It is valid at this site's nodes, and at nodes of other sites that trust this node
(node.trusted_issuers). A user sends it as an API key; a node starts with `modelvine up --join`. With --for-node it contains the
swarm key, and is not a key for models. Its holder may narrow it and pass it on (--from), as often as --passes allows.
`modelvine key list` shows grants, `modelvine key revoke NAME` revokes one: here at once, at other sites within seconds. Pass
secrets as @FILE, or - for standard input, not as arguments.

Examples:
  modelvine invite ann --models 'llama*' --rpm 60 --days 7
  (umask 077; modelvine invite gpu-2 --for-node --days 30 > invitation)
  modelvine invite --from @ann.key --models llama-8b --days 1
  modelvine invite --show @ann.key
"""

import argparse
import json
import re
import time

from node.cli.console.options import (
    LIMITS,
    add_allowance,
    add_json,
    add_node_options,
    number,
    whole_number,
)
from node.errors import CommandFailed, WrongUsage

PATH = "/api/v1/grants"
USUAL_DAYS = 7.0
MAX_DAYS, MAX_PASSES = 366, 3
"""Those of `node.faces.v1.keys` and `node.auth.grants`, whose import would slow every --help down; a test compares them."""

_DAY = 86_400


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "name",
        metavar="NAME",
        nargs="?",
        default="",
        help="name of the recipient (default: guest-…)",
    )
    add_allowance(parser)
    add(
        "--days",
        metavar="N",
        type=number,
        default=USUAL_DAYS,
        help=f"days until it expires (default: 7, at most {MAX_DAYS})",
    )
    add(
        "--passes",
        metavar="N",
        type=whole_number(0, MAX_PASSES),
        default=0,
        help=f"how often it may be passed on (at most {MAX_PASSES})",
    )
    add(
        "--at",
        metavar="PEER",
        type=_peer,
        action="append",
        default=[],
        help="peer id of a node that accepts it, repeatable (default: all that trust this node)",
    )
    add("--for-node", action="store_true", help="for a node: includes the swarm key")
    add("--from", dest="origin", metavar="GRANT", default="", help="narrow a grant that you have")
    add("--show", metavar="GRANT", default="", help="show what a grant allows")
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Create, narrow or show an invitation; raise `CommandFailed` or `WrongUsage`."""
    if not 0 < arguments.days <= MAX_DAYS:
        raise WrongUsage(
            f"--days is {arguments.days:g}, but must be above 0, and at most {MAX_DAYS}"
        )
    if arguments.show:
        return _show(arguments)
    if arguments.origin:
        return _narrow(arguments)
    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.streams import shown_once  # noqa: PLC0415
    from node.cli.console.text import note, plain  # noqa: PLC0415

    fields = {
        **_terms(arguments),
        "name": arguments.name,
        "expires_in": arguments.days * _DAY,
        "for_node": arguments.for_node,
    }
    created = client(arguments).post(PATH, fields)
    name = created["name"]
    for warning in created.get("warnings") or ():
        note(plain(f"warning: {warning}"))
    with shown_once(
        f"created without being shown: {name}; `modelvine key revoke {name}` revokes it"
    ):
        return _say(arguments, name, created["invitation"], created["expires"])


def _terms(arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "models": arguments.models,
        **{name: getattr(arguments, name) for name in LIMITS},
        "background": arguments.background,
        "passes": arguments.passes,
        "nodes": arguments.at,
    }


def _narrow(arguments: argparse.Namespace) -> int:
    from pydantic import ValidationError  # noqa: PLC0415

    from node.auth import grants, invitation  # noqa: PLC0415
    from node.auth.errors import GrantRefused  # noqa: PLC0415
    from node.secrets.joined import read_argument  # noqa: PLC0415

    expires = int(time.time() + arguments.days * _DAY)
    fields = _terms(arguments)
    try:
        terms = grants.Terms.model_validate_json(json.dumps(fields | {"expires": expires}))
        parsed = invitation.read(read_argument(arguments.origin))
        grants.check(parsed.grant)
        narrower = grants.narrow(parsed.grant, terms)
        text = invitation.written(invitation.Invitation(narrower, parsed.addresses))
    except GrantRefused as error:
        raise CommandFailed(str(error)) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise WrongUsage(f"{first['loc'][0]}: {first['msg']}") from None
    return _say(arguments, arguments.name, text, narrower.expires)


def _show(arguments: argparse.Namespace) -> int:
    from node.auth import grants, invitation  # noqa: PLC0415
    from node.auth.errors import GrantRefused  # noqa: PLC0415
    from node.cli.console.text import say_fields, say_json  # noqa: PLC0415
    from node.secrets.joined import read_argument  # noqa: PLC0415

    try:
        parsed = invitation.read(read_argument(arguments.show))
        grants.check(parsed.grant)
    except GrantRefused as error:
        raise CommandFailed(str(error)) from error
    blocks = [
        b.terms.model_dump(exclude={"key"}, exclude_defaults=True) for b in parsed.grant.blocks
    ]
    if arguments.json:
        say_json(
            {
                "id": parsed.grant.id,
                "issuer": parsed.grant.peer,
                "expires": parsed.grant.expires,
                "addresses": parsed.addresses,
                "for_node": bool(parsed.swarm_key),
                "terms": blocks,
            }
        )
        return 0
    ended = parsed.grant.expires <= time.time()
    terms = (
        (
            "terms" if number == 0 else "and",
            ", ".join(
                f"{name} {_said(value)}" for name, value in block.items() if name != "expires"
            )
            or "all",
        )
        for number, block in enumerate(blocks)
    )
    say_fields(
        [
            ("id", parsed.grant.id),
            ("signed by", parsed.grant.peer),
            ("ends" if not ended else "ended", _date(parsed.grant.expires)),
            *terms,
            ("mesh", ", ".join(parsed.addresses) or "not said"),
            ("for", "a node" if parsed.swarm_key else "a user, or a node of an open mesh"),
        ]
    )
    return 0


def _say(arguments: argparse.Namespace, name: str, text: str, expires: int) -> int:
    import sys  # noqa: PLC0415

    from node.cli.console.text import plain, say_json  # noqa: PLC0415

    if arguments.json:
        say_json({"name": name, "invitation": text, "expires": expires})
        return 0
    print(text, flush=True)
    node = "start a node with `modelvine up --join`"
    use = node if arguments.for_node else f"use it like an OpenAI key, or {node}"
    whose = f"the invitation of {name}" if name else "the invitation"
    print(plain(f"{whose}, until {_date(expires)}: {use}; it is shown only once"), file=sys.stderr)
    return 0


def _peer(text: str) -> str:
    if not re.fullmatch("[1-9A-HJ-NP-Za-km-z]{40,64}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the peer id of a node")
    return text


def _said(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _date(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
