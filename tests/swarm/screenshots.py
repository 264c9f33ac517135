"""Screenshots of each pane of the console, light, dark and on a phone: five nodes, some traffic. `make screenshots` runs it."""

import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from tests.swarm.browser import Page, page
from tests.swarm.client import Client, connected
from tests.swarm.nodes import Node, Start, Swarm

NODES = ("atlas", "gpu-1", "gpu-2", "workshop", "laptop")
SERVED: Mapping[str, Sequence[str]] = {
    "gpu-1": ("llama-3.3-70b", "qwen-2.5-coder"),
    "gpu-2": ("llama-3.3-70b", "bge-m3"),
    "workshop": ("smollm2",),
}
MODELS = ("llama-3.3-70b", "qwen-2.5-coder", "smollm2")
QUESTION = "What grows on a vine?"
PANES = ("mesh", "models", "requests", "events", "manage", "playground", "usage")
LOOKS: Mapping[str, Mapping[str, Any]] = {
    "light": {},
    "dark": {"dark": True},
    "phone": {"width": 390, "height": 844},
}


async def _traffic(client: Client, node: Node, key: str) -> None:
    for turn in range(60):
        body = {
            "model": MODELS[turn % len(MODELS)],
            "stream": True,
            "messages": [{"role": "user", "content": QUESTION}],
        }
        headers = {"Authorization": f"Bearer {key}"}
        url = f"{node.http}/v1/chat/completions"
        async with client.session.post(url, json=body, headers=headers) as response:
            await response.read()
    await client.chat(node, "llamas")


async def _pictures(console: Page, node: Node, folder: Path) -> None:
    async def picture(pane: str, theme: str) -> None:
        await console.run(f"location.hash = '{pane}'")
        await console.shows(f"document.querySelector('.pane-{pane}')")
        match pane:
            case "mesh":
                await console.shows(
                    f"document.querySelectorAll('.picture g.node').length === {len(NODES)}"
                )
            case "models" | "requests":
                await console.click("td .open" if pane == "models" else "tr.opens td", MODELS[0])
                await console.shows("document.querySelector('main .card dl, main canvas')")
        await asyncio.sleep(1.5)
        await console.run("scrollTo(0, 0); document.activeElement?.blur()")
        await console.picture(folder / f"console-{pane}-{theme}.webp")

    for theme, screen in LOOKS.items():
        await console.look(**screen)
        await console.open(f"{node.http}/")
        await console.says("nodes alive")
        for pane in PANES:
            await picture(pane, theme)


async def _take(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, Swarm(Path(scratch)) as swarm:
        nodes = swarm.start_all(*(Start(name, {"node": {"name": name}}) for name in NODES))
        by_name = dict(zip(NODES, nodes, strict=True))
        async with connected() as client:
            for name, models in SERVED.items():
                worker = swarm.start_worker(
                    f"worker-{name}", "--delay-first", "0.05", "--delay-between", "0.004"
                )
                await client.register(by_name[name], "lab", models, worker.fields["url"])
            await client.met(nodes)
            await client.listed(nodes, *MODELS)
            keys = [{"name": "ann"}, {"name": "ben", "rpm": 60}]
            made_keys = await client.post(by_name["atlas"], "/api/v1/keys", {"keys": keys})
            await client.post(by_name["laptop"], "/api/v1/drain", {})
            key = orjson.loads(made_keys.body)["keys"][0]["key"]
            await _traffic(client, by_name["atlas"], key)
            await client.get(by_name["atlas"], "/api/v1/usage")
            browser = Path(scratch) / "browser"
            browser.mkdir()
            async with page(browser) as console:
                await _pictures(console, by_name["atlas"], folder)
            assert console.complaints == []


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(_take(target))
