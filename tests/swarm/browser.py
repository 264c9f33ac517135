"""Headless Chromium, driven over its DevTools protocol: what a page shows, logs in its console, and requests from where."""

import asyncio
import base64
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from tests.swarm.waiting import POLL, until

NAMES = ("chromium", "chromium-browser", "google-chrome-stable")
WITHIN = 20.0
"""Seconds that one command of the browser may take, and its start."""

MAX_MESSAGE = 64 * 1024 * 1024
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
    "--force-color-profile=srgb", "--lang=en",
)  # fmt: skip


def found() -> str | None:
    """Return where a browser is, `None` where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page: sends it commands, and keeps the events that it reports."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self.complaints: list[str] = []
        """Errors and warnings of its console, and what its scripts raised."""
        self.requests: list[str] = []
        """URLs that it requested."""
        self.dialogs: list[str] = []
        """What it asked in dialogs; each is answered with yes."""

    async def listen(self) -> None:
        """Take in what the browser says until the connection ends."""
        async for message in self._socket:
            payload = orjson.loads(message.data)
            if "id" in payload:
                if not (answer := self._asked.pop(payload["id"])).done():
                    answer.set_result(payload)
            else:
                await self._note(payload["method"], payload["params"])

    async def _note(self, method: str, params: Mapping[str, Any]) -> None:
        match method:
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                entry = params["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.complaints.append(str(details.get("exception", details).get("description")))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(str([argument.get("value") for argument in params["args"]]))
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Page.javascriptDialogOpening":
                self.dialogs.append(params["message"])
                await self._send("Page.handleJavaScriptDialog", {"accept": True})

    async def _send(self, method: str, params: Mapping[str, Any]) -> int:
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        request = {"id": number, "method": method, "params": params}
        await self._socket.send_str(orjson.dumps(request).decode())
        return number

    async def command(self, method: str, **params: Any) -> Mapping[str, Any]:
        """Give a command of the protocol and return its result."""
        number = await self._send(method, params)
        async with asyncio.timeout(WITHIN):
            reply = await self._asked[number]
        assert "error" not in reply, (method, reply)
        return dict(reply["result"])

    async def run(self, script: str) -> Any:
        """Return the value of an expression, which may be a promise."""
        reply = await self.command(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in reply, (script, reply["exceptionDetails"])
        return reply["result"].get("value")

    async def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        await self.command("Page.navigate", url=url)
        await self.shows("document.readyState === 'complete'")

    async def shows(self, condition: str, *, within: float = 5.0) -> float:
        """Wait until an expression is true in the page; return the seconds it took."""

        async def holds() -> bool:
            return bool(await self.run(f"Boolean({condition})"))

        return await until(holds, within=within, otherwise=f"the page does not show {condition}")

    async def says(self, text: str, *, within: float = 5.0) -> float:
        """Wait until a text stands in the page's content."""
        condition = (
            f"document.getElementById('main')?.innerText.includes({orjson.dumps(text).decode()})"
        )
        return await self.shows(condition, within=within)

    async def click(self, selector: str, text: str = "") -> None:
        """Click on the element of a selector that holds a text, with the mouse at its place on the screen."""
        element = f"""(() => {{
            const all = [...document.querySelectorAll({orjson.dumps(selector).decode()})];
            const one = all.find((element) => element.textContent.includes({orjson.dumps(text).decode()}));
            if (!one) return null;
            one.scrollIntoView({{ block: 'center', inline: 'center' }});
            const box = one.getBoundingClientRect();
            return {{ x: box.x + box.width / 2, y: box.y + box.height / 2 }};
        }})()"""
        await self.shows(f"{element} !== null")
        position = await self.run(element)
        for kind in ("mousePressed", "mouseReleased"):
            await self.command(
                "Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **position
            )

    async def type(self, name: str, text: str) -> None:
        """Write into the field of a form as a person would."""
        await self.shows(f"document.querySelector('[name=\"{name}\"]')")
        await self.run(
            f"(() => {{ const f = document.querySelector('[name=\"{name}\"]'); f.focus(); f.select?.(); }})()"
        )
        await self.command("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """Press a key."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        await self.command("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        await self.command("Input.dispatchKeyEvent", type="keyUp", **event)

    async def look(self, *, dark: bool = False, width: int = 1280, height: int = 860) -> None:
        """Set the size of the screen and its colour scheme, dark or light."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.command("Emulation.setEmulatedMedia", features=[scheme])
        await self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    async def picture(self, file: Path) -> None:
        """Write a screenshot into a file, as WebP."""
        await asyncio.sleep(10 * POLL)
        reply = await self.command("Page.captureScreenshot", format="webp", quality=80)
        await asyncio.to_thread(file.write_bytes, base64.b64decode(reply["data"]))


@asynccontextmanager
async def page(folder: Path) -> AsyncIterator[Page]:
    """Open a browser with one empty page; its files lie in `folder`."""
    browser = found()
    assert browser
    port_file = folder / "DevToolsActivePort"
    command = (browser, *OPTIONS, f"--user-data-dir={folder}", "about:blank")
    process = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)
    try:
        await until(port_file.exists, within=WITHIN, otherwise="the browser does not start")
        await until(
            lambda: len(port_file.read_text().splitlines()) > 1,
            within=1,
            otherwise="it says no port",
        )
        port = port_file.read_text().split()[0]
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            async with session.get(f"http://127.0.0.1:{port}/json") as response:
                pages = [target for target in await response.json() if target["type"] == "page"]
            url = pages[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(url, max_msg_size=MAX_MESSAGE) as socket:
                opened = Page(socket)
                listening = group.create_task(opened.listen())
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await opened.command(f"{domain}.enable")
                yield opened
            listening.cancel()
    finally:
        process.terminate()
        async with asyncio.timeout(WITHIN):
            await process.wait()
