"""The tables for whoever has no JavaScript: strangers' names are text, and there are not too many rows."""

from node.faces.console import plain

HOSTILE = "<img src=x onerror=alert(1)>"


async def test_names_are_text_and_never_markup(alone, worker):
    await alone.register(worker, project="'\"&", model=HOSTILE)
    text = plain.tables(alone.context).decode()
    assert "<img" not in text
    assert "<td>&lt;img src=x onerror=alert(1)&gt;</td>" in text
    assert "<td>&#x27;&quot;&amp;</td>" in text


async def test_a_long_table_is_cut_and_says_so(mesh):
    text = plain.tables(mesh.one.context, most=1).decode()
    assert text.count("<td>alive</td>") == 1
    assert "And 1 more." in text
