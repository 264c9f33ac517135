"""Tables for browsers without JavaScript: their content, foreign names as text only, and a bounded number of rows."""

import re

from node.faces import console

HOSTILE = "<img src=x onerror=alert(1)>"
A, B = "12D3KooWaaaaaaaa", "12D3KooWbbbbbbbb"


def short(node):
    """Return what a node without a name is called: the beginning of its id, which commands and headers take."""
    return f"{node[:14]}…"


def rows(text, title):
    """Return the cells of each row of one table."""
    [table] = re.findall(f"<h2>{title}</h2>.*?</section>", text, re.DOTALL)
    body = table.partition("<tbody>")[2]
    return [re.findall("<td>(.*?)</td>", row) for row in body.split("</tr>") if "<td>" in row]


async def test_names_are_text_and_never_markup(alone, worker):
    await alone.register(worker, project="'\"&", model=HOSTILE)
    text = console.tables(alone.context, {}).decode()
    assert "<img" not in text
    assert "<td>&lt;img src=x onerror=alert(1)&gt;</td>" in text
    assert "<td>&#x27;&quot;&amp;</td>" in text


async def test_a_long_table_is_cut_and_says_so(mesh):
    text = console.tables(mesh.one.context, {}, limit=1).decode()
    assert text.count("<td>alive</td>") == 1
    assert "And 1 more." in text


async def test_connections_between_other_nodes_are_a_table(alone):
    topology = {
        "links": [
            {"one": A, "other": B, "relayed": True},
            {"one": A, "other": alone.context.peer, "relayed": False},
        ],
        "told": [A],
    }
    text = console.tables(alone.context, topology).decode()
    own_name = alone.context.registry.own_record.name or short(alone.context.peer)
    assert rows(text, "Connections") == [
        [short(A), short(B), "relayed"],
        [short(A), own_name, "direct"],
    ]
    assert "1 of 1 nodes reported their connections." in text
    assert "reload the page" in console.tables(alone.context, {}).decode()


async def test_queue_and_refusals_of_the_last_hour_are_a_table(alone):
    history = alone.context.usage_log.history
    for queued in (2, 5, 1):
        history.queued("tiny", A, queued)
    history.refused(HOSTILE, A, 3)
    text = console.tables(alone.context, {}).decode()
    assert rows(text, "Last hour") == [
        ["&lt;img src=x onerror=alert(1)&gt;", short(A), "0", "0", "3", "0"],
        ["tiny", short(A), "0", "0", "0", "5"],
    ]
