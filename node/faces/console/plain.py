"""Tables of nodes and models as plain HTML, for whoever has no JavaScript. All names come from strangers, and are escaped."""

from collections.abc import Iterable
from html import escape

from node.faces import Context
from node.faces.model_list import live_offers
from node.faces.v1.network import node_rows

MAX_ROWS = 1_000
"""Rows of one table; a line below it counts the others."""


def tables(context: Context, *, most: int = MAX_ROWS) -> bytes:
    """Return the tables, as UTF-8, of `most` rows each."""
    names = {node: signed.record.name for node, signed in context.registry.catalog.held.items()}
    nodes = [
        (
            row["name"] or row["node"][-8:],
            row["state"],
            row["why"],
            row["connection"],
            row["agent"],
            row["models"],
        )
        for row in node_rows(context)
    ]
    models = sorted(
        (
            offer.service.project,
            offer.service.model,
            offer.service.type.name.lower().replace("_", " "),
            names.get(offer.node) or offer.node[-8:],
        )
        for offer in live_offers(context)
    )
    parts = [
        *_table(
            "Nodes", ("Node", "State", "Because", "Connection", "Version", "Models"), nodes, most
        ),
        *_table("Models", ("Project", "Model", "Type", "Node"), models, most),
    ]
    # A name may hold half of a character; HTML may not.
    return "\n".join(parts).encode(errors="replace")


def _table(
    title: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]], most: int
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
    yield "</section>"
