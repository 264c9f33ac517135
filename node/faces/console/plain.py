"""Tables of the mesh as plain HTML, for browsers without JavaScript. Names come from other machines, and are escaped."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from node.faces import Context
from node.faces.model_list import live_offers
from node.faces.v1.network import node_rows
from registry.records import PeerId

MAX_ROWS = 1_000
"""The most rows of one table; a line below it counts the others."""

Row = tuple[object, ...]


def tables(context: Context, topology: Mapping[str, Any], *, most: int = MAX_ROWS) -> bytes:
    """Return the tables as UTF-8, with `most` rows each; `topology` is empty until nodes have reported."""
    names = {node: signed.record.name for node, signed in context.registry.catalog.held.items()}

    def name_of(node: str) -> str:
        return names.get(PeerId(node)) or f"{node[:14]}…"

    nodes = [
        (
            name_of(row["node"]),
            row["state"],
            row["why"],
            row["connection"],
            row["agent"],
            row["models"],
        )
        for row in node_rows(context)
    ]
    links = [
        (name_of(link["one"]), name_of(link["other"]), "relayed" if link["relayed"] else "direct")
        for link in topology.get("links", ())
    ]
    models = sorted(
        (
            offer.service.project,
            offer.service.model,
            offer.service.type.name.lower().replace("_", " "),
            name_of(offer.node),
        )
        for offer in live_offers(context)
    )
    history = context.usage_log.history
    pairs = ((*pair, history.total(*pair)) for pair in history.pairs())
    last_hour = [
        (model, name_of(node), total.requests, total.failed, total.refused, total.queued)
        for model, node, total in pairs
    ]
    parts = [
        *_table(
            "Nodes", ("Node", "State", "Reason", "Connection", "Version", "Models"), nodes, most
        ),
        *_table("Connections", ("Node", "Node", "Route"), links, most, _told(topology, len(nodes))),
        *_table("Models", ("Project", "Model", "Type", "Node"), models, most),
        *_table(
            "Last hour",
            ("Model", "Node", "Requests", "Failed", "Refused", "Longest queue"),
            last_hour,
            most,
        ),
    ]
    # A name may contain a lone surrogate, which UTF-8 cannot encode.
    return "\n".join(parts).encode(errors="replace")


def _told(topology: Mapping[str, Any], nodes: int) -> str:
    if not topology:
        return "The other nodes have not reported yet; reload the page."
    return f"{len(topology['told']):,} of {nodes:,} nodes reported their connections."


def _table(
    title: str, columns: tuple[str, ...], rows: Iterable[Row], most: int, note: str = ""
) -> Iterable[str]:
    rows = list(rows)
    yield f"<section class='pane'><h2>{title}</h2><div class='scroll'><table><thead><tr>"
    yield from (f"<th scope='col'>{column}</th>" for column in columns)
    yield "</tr></thead><tbody>"
    for row in rows[:most]:
        yield f"<tr>{''.join(f'<td>{escape(str(value))}</td>' for value in row)}</tr>"
    yield "</tbody></table></div>"
    if not rows:
        yield "<p>None.</p>"
    if len(rows) > most:
        yield f"<p>And {len(rows) - most:,} more.</p>"
    if note:
        yield f"<p>{note}</p>"
    yield "</section>"
