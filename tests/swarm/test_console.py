"""The console in a real browser: every pane, by mouse and keyboard, with no errors logged and no server asked but the node."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from node.faces.v1.topology import FRESH
from tests.swarm import browser
from tests.swarm.browser import Page
from tests.swarm.client import Client, connected
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import SLACK, show, until

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.skipif(
        browser.found() is None and "CI" not in os.environ,
        reason="there is no chromium here: apt-get install chromium",
    ),
]

HOSTILE_NODE = "<img/src=x/onerror=alert(1)>"
HOSTILE_MODEL = "<img src=x onerror=alert(2)>"
"""What a peer may call its node and its models."""

PANES = ("Mesh", "Models", "Requests", "Events", "Manage", "Playground", "Usage")
AXE = Path(__file__).parents[2] / ".venv/axe/axe-core/axe.min.js"

PAINT_WITHIN = 0.3
"""Seconds until the first paint; this is the goal."""

CPU_FOR = 8.0
"""Seconds for which the processor time of a node is counted."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node, str]]:
    """Two nodes, of which the second has a worker and names that would run if they were markup; and the worker's URL."""
    with Swarm(tmp_path_factory.mktemp("console")) as swarm:
        first, second = swarm.start_all(
            Start("atlas", {"node": {"name": "atlas"}}),
            Start("hostile", {"node": {"name": HOSTILE_NODE}}),
        )
        worker = swarm.start_worker("worker", "--delay-between", "0.01").fields["url"]

        async def prepare() -> None:
            async with connected() as client:
                await client.register(second, "lab", ["tiny", HOSTILE_MODEL], worker)
                await client.met([first, second])
                await client.listed([first], "tiny")

        asyncio.run(prepare())
        yield first, second, worker


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Node]]:
    """Three nodes, each connected to both others."""
    names = ("atlas", "borealis", "corona")
    with Swarm(tmp_path) as swarm:
        yield swarm.start_all(*(Start(name, {"node": {"name": name}}) for name in names))


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """A page of a browser of its own, whose console must be empty at the end."""
    async with browser.page(tmp_path) as opened:
        await opened.look()
        yield opened
    assert opened.complaints == []


async def go(page: Page, pane: str) -> None:
    await page.click("#tabs a", pane)
    await page.shows(f"document.querySelector('#tabs [aria-current]').textContent === '{pane}'")


def asked_only(page: Page, node: Node) -> bool:
    return all(url.startswith((f"{node.http}/", "data:")) for url in page.requests)


async def violations(page: Page) -> list[str]:
    """Return the faults that axe-core finds in what is shown."""
    if not AXE.exists():
        pytest.skip("axe-core is not here: make .venv/made/axe")
    await page.run(AXE.read_text() + ";0")
    return list(
        await page.run(
            "axe.run().then((r) => r.violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.html).join(' | ').slice(0, 300)))"
        )
    )


async def test_names_of_strangers_are_text_in_every_pane(
    nodes: tuple[Node, Node, str], page: Page
) -> None:
    await page.open(f"{nodes[0].http}/")
    await page.says(HOSTILE_NODE)
    for pane in PANES:
        await go(page, pane)
        if pane in ("Mesh", "Models", "Events"):
            await page.says(HOSTILE_NODE)
        assert await page.run("document.querySelectorAll('main img, main script').length") == 0
    await go(page, "Models")
    await page.click("td .open", HOSTILE_MODEL)
    await page.says("Candidates, in order")
    await page.says("No requests in the last hour.")
    assert page.dialogs == []
    assert asked_only(page, nodes[0])


async def test_models_keys_and_the_node_itself_are_changed_by_forms(
    nodes: tuple[Node, Node, str], page: Page
) -> None:
    first, _, worker = nodes
    await page.open(f"{first.http}/#manage")
    for name, value in {"project": "lab", "model": "echo", "api": worker}.items():
        await page.type(name, value)
    await page.says(f"modelvine register lab echo {worker}")
    await page.click("button", "Register")
    await page.says("Registered lab/echo.")
    await page.type("name", "ann")
    await page.says("modelvine key create ann")
    await page.click("button", "Create")
    await page.says("shown only once: mv_")
    await page.click("button", "Invite")
    await page.says("The invitation for guest-")
    await page.shows("document.querySelector('svg.qr path').getAttribute('d').length > 10000")
    await page.click("button", "Revoke")
    await page.says("The key of ann is revoked.")
    assert page.dialogs == [
        "Revoke the key of ann? It stops working at once, and you cannot undo this."
    ]
    await page.click("button", "Drain")
    await page.says("This node is draining now.")
    await page.shows("document.querySelector('[data-key=undrain]:enabled')")
    await page.click("button", "Serve again")
    await page.says("This node is serving now.")
    await page.shows("document.querySelector('[name=what]').textContent === 'lab/echo'")
    await page.click("button", "Unregister")
    await page.says("Unregistered lab/echo.")
    await go(page, "Events")
    await page.says("unregister model")
    await page.says("revoke key")
    await page.says("joined")
    assert asked_only(page, first)


async def test_a_model_is_asked_and_the_request_is_seen_with_its_decision(
    nodes: tuple[Node, Node, str], page: Page
) -> None:
    first, second, _ = nodes
    await page.open(f"{first.http}/")
    await page.says("nodes alive")
    await page.shows("document.querySelectorAll('.picture g.node').length === 2")
    await page.click(".picture g.node text", HOSTILE_NODE[:10])
    await page.says(second.peer)

    await go(page, "Playground")
    await page.shows("[...document.querySelectorAll('[name=model] option')].length === 2")
    await page.run("document.querySelector('[name=model]').value = 'tiny'")
    await page.type("prompt", "What grows on a vine?")
    await page.click("button", "Send to all replicas")
    await page.says("done after")
    assert await page.run("document.querySelectorAll('.answers .card').length") == 1
    assert len(await page.run("document.querySelector('.answer').textContent")) > 1

    await go(page, "Requests")
    await page.click("td .open", "")
    await page.says(f"({second.peer})")
    await page.says("one hop, direct")
    await page.click("button", "Explain the route now")
    await page.says("Candidates, in order")

    await go(page, "Usage")
    await page.says("output tokens")
    await page.says("tiny")
    await go(page, "Models")
    await page.click("td .open", "tiny")
    await page.shows("document.querySelectorAll('.chart canvas').length === 6")
    await page.says("Longest queue, each half minute")
    await page.says("Refused because full, each half minute")
    assert asked_only(page, first)


async def test_connections_between_other_nodes_are_in_the_picture(
    three: list[Node], page: Page, client: Client
) -> None:
    await client.met(three)
    await page.open(f"{three[0].http}/")
    # One of each is in the legend.
    await page.shows("document.querySelectorAll('.picture line.direct').length === 3")
    await page.shows("document.querySelectorAll('.picture line.other').length === 2", within=20)
    await page.says("between other nodes, as reported")
    await page.click(".picture g.node text", "borealis")
    await page.says("atlas, corona")
    assert await violations(page) == []


async def test_a_user_sees_models_the_playground_and_their_own_usage(
    tmp_path: Path, page: Page, client: Client
) -> None:
    closed = {"node": {"open": "nobody", "name": "closed"}}
    with Swarm(tmp_path) as swarm:
        node = swarm.start(Start("closed", closed))
        token = (node.folder / "control.token").read_text().strip()
        worker = swarm.start_worker("worker").fields["url"]
        operator = {"Authorization": f"Bearer {token}"}
        row = {"project": "lab", "model": "tiny", "api": worker}
        await client.post(node, "/api/v0/ai/model/register", row, headers=operator)
        body = {"keys": [{"name": "ann"}]}
        answer = await client.post(node, "/api/v1/keys", body, headers=operator)
        key = re.findall(rb'"key":"(mv_[^"]+)"', answer.body)[0].decode()
        await page.open(f"{node.http}/")
        await page.says("this node requires a key")
        assert await page.run("document.querySelectorAll('#tabs a').length") == 0
        # The browser itself notes the refusal; nothing else may stand there.
        assert [c for c in page.complaints if "401" not in c] == []
        page.complaints.clear()
        await page.click("main button", "Enter a key")
        await page.type("key", key)
        await page.click("dialog button", "Use this key")
        await page.says("tiny")
        tabs = await page.run("[...document.querySelectorAll('#tabs a')].map((a) => a.textContent)")
        assert tabs == ["Models", "Playground", "Usage"]
        await go(page, "Playground")
        await page.type("prompt", "What grows on a vine?")
        await page.click("button", "Send")
        await page.says("done after")
        await go(page, "Usage")
        await page.says("ann")
        assert key not in " ".join(page.requests)
        assert await page.run("JSON.stringify(localStorage)") == "{}"
        assert await page.run("document.cookie") == ""


async def test_everything_is_reached_by_keyboard(nodes: tuple[Node, Node, str], page: Page) -> None:
    await page.open(f"{nodes[0].http}/")
    await page.shows("document.querySelectorAll('.picture g.node').length === 2")
    labels = []
    for _ in range(len(PANES) + 12):
        await page.press("Tab")
        labels.append(
            await page.run(
                "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
            )
        )
    assert labels[0] == "Skip to the content"
    # After the last one the browser starts again.
    assert [one for one in labels if one in PANES][: len(PANES)] == list(PANES)
    assert [one for one in labels if one.endswith(f" 2 models, alive, direct, {HOSTILE_NODE}")]
    await page.run(
        "document.querySelector('.picture g.node:not(.self)').focus({ focusVisible: true })"
    )
    await page.press("Enter")
    await page.says(nodes[1].peer)


async def test_more_than_fifty_nodes_are_shown_as_a_matrix(
    nodes: tuple[Node, Node, str], page: Page
) -> None:
    await page.open(f"{nodes[0].http}/#models")
    await page.shows("document.getElementById('live').textContent === 'live'")
    await page.run("""import('/console/live.js').then(({ state }) => {
        const one = state.nodes[0];
        const nodes = Array.from({ length: 60 }, (_, at) => ({ ...one, node: `n${at}`, name: `n${at}`, self: at === 0 }));
        Object.defineProperty(state, 'nodes', { get: () => nodes, set() {} });
        location.hash = 'mesh';
    })""")
    await page.shows("document.querySelectorAll('.matrix button').length === 60")


async def test_without_javascript_there_are_tables(
    nodes: tuple[Node, Node, str], page: Page
) -> None:
    await page.command("Emulation.setScriptExecutionDisabled", value=True)
    note = "2 of 2 nodes reported their connections."

    async def complete() -> bool:
        # The page does not wait for other nodes for long: the next load has their reports.
        await page.open(f"{nodes[0].http}/")
        return bool(await page.run(f"document.body.innerText.includes({note!r})"))

    await until(complete, within=5, otherwise="no node reported its connections")
    for text in ("atlas", HOSTILE_NODE, HOSTILE_MODEL, "Enable JavaScript", note, "Longest queue"):
        await page.says(text)
    assert await page.run("document.querySelectorAll('main img').length") == 0
    assert asked_only(page, nodes[0])


async def test_without_javascript_connections_between_other_nodes_are_rows(
    three: list[Node], page: Page
) -> None:
    async with connected() as client:
        await client.met(three)
    await page.command("Emulation.setScriptExecutionDisabled", value=True)

    async def drawn() -> bool:
        await page.open(f"{three[0].http}/")
        table = "[...document.querySelectorAll('section')].find((s) => s.innerText.startsWith('Connections'))"
        rows = await page.run(f"[...{table}.querySelectorAll('tbody tr')].map((r) => r.innerText)")
        connected = {frozenset(row.split()) for row in rows}
        names = [("atlas", "borealis"), ("atlas", "corona"), ("borealis", "corona")]
        return connected == {frozenset((*pair, "direct")) for pair in names}

    # Reports of other nodes are cached for some seconds.
    await until(drawn, within=SLACK * FRESH, otherwise="a connection is not shown")


async def test_the_page_of_the_api_shows_every_operation_and_how_to_ask_for_it(
    nodes: tuple[Node, Node, str], page: Page
) -> None:
    await page.open(f"{nodes[0].http}/")
    await page.click("header a", "API")
    await page.says("Requests to models")
    await page.shows("document.querySelectorAll('details.operation').length > 150")
    await page.click("#search")
    await page.command("Input.insertText", text="post keys rotate")
    await page.says("1 of ")
    await page.press("Tab")
    await page.press("Enter")
    await page.says(
        f"curl -H 'Authorization: Bearer KEY' -X POST {nodes[0].http}/api/v1/keys/NAME/rotate"
    )
    await page.says("key_not_found")
    await page.open(f"{nodes[0].http}/docs#post_api_v1_keys")
    await page.says("model_limits list of objects, at most")
    await page.look(width=390, height=844)
    await page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    await page.shows("document.querySelectorAll('details .inside').length > 150")
    assert await page.run("document.documentElement.scrollWidth") <= 390
    await page.command("Emulation.setScriptExecutionDisabled", value=True)
    await page.open(f"{nodes[0].http}/docs")
    await page.says("/v1/chat/completions\tCreate a chat completion")
    assert asked_only(page, nodes[0])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_axe_finds_nothing_on_the_page_of_the_api(
    nodes: tuple[Node, Node, str], page: Page, *, dark: bool
) -> None:
    await page.look(dark=dark)
    await page.open(f"{nodes[0].http}/docs#post_api_v1_keys")
    await page.says("model_limits")
    assert await violations(page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_axe_finds_nothing(nodes: tuple[Node, Node, str], page: Page, *, dark: bool) -> None:
    await page.look(dark=dark)
    await page.open(f"{nodes[0].http}/")
    await page.says("nodes alive")
    problems = []
    for pane in PANES:
        await go(page, pane)
        if pane == "Models":
            await page.click("td .open", "tiny")
            await page.says("Candidates, in order")
        problems += [f"{pane}: {violation}" for violation in await violations(page)]
    assert problems == []


@pytest.mark.parametrize("width", [390, 1280])
async def test_no_pane_is_wider_than_its_screen(
    nodes: tuple[Node, Node, str], page: Page, width: int
) -> None:
    await page.look(width=width, height=844)
    await page.open(f"{nodes[0].http}/")
    await page.says("nodes alive")
    for pane in PANES:
        await page.run(f"location.hash = '{pane.lower()}'")
        await page.shows(f"document.querySelector('#tabs [aria-current]').textContent === '{pane}'")
        assert await page.run("document.documentElement.scrollWidth") <= width, pane


async def test_the_first_paint_comes_at_once_and_the_cost_of_an_open_page_is_shown(
    nodes: tuple[Node, Node, str], page: Page, client: Client
) -> None:
    for _ in range(2):
        # The first time it is the browser's own start that takes long.
        await page.open(f"{nodes[0].http}/")
        await page.says("nodes alive")
    paint = await page.run(
        "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
    )
    sent = await page.run(
        "performance.getEntriesByType('resource').reduce((sum, one) => sum + one.encodedBodySize, 0)"
    )

    async def processor_time() -> float:
        text = await client.metrics(nodes[0])
        return float(re.findall(r"^process_cpu_seconds_total (\S+)$", text, re.MULTILINE)[0])

    looked_at = await _spent(processor_time)
    await page.command("Page.navigate", url="about:blank")
    await asyncio.sleep(1)
    alone = await _spent(processor_time)
    show("console", first_paint=paint, bytes=str(sent), cpu_looked_at=looked_at, cpu_alone=alone)
    assert paint < SLACK * PAINT_WITHIN


async def _spent(processor_time) -> float:
    before = await processor_time()
    await asyncio.sleep(CPU_FOR)
    return (await processor_time() - before) / CPU_FOR
