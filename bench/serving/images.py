"""What do images of 1.4 MB cost? Made and edited, a second, beside bare aiohttp, in turns."""

import json
import statistics
import sys

from bench.compare import call, running, until
from bench.mock import load
from bench.serving.rows import Row
from bench.serving.scene import MODEL, Scene

BYTES = 1_400_000
ROUNDS = 3
SECONDS = 4.0
CONNECTIONS = 8
BARE_PORT = 28_114
BOUNDARY = "x-bench"


async def measure(scene: Scene) -> list[Row]:
    """Ask both in turns; medians."""
    node, mock = await scene.serving("images")
    made = json.dumps({"model": MODEL, "prompt": f"[[bytes={BYTES}]] a cat"}).encode()
    generations = scene.body("generations", made)
    edits = scene.body("edits", _form())
    worker = f"127.0.0.1:{mock.port}"
    seen: dict[tuple[str, str], list[float]] = {}
    with running(sys.executable, "-m", "bench.bare", str(BARE_PORT), worker, cpu="1"):
        bare = f"http://127.0.0.1:{BARE_PORT}"
        until(lambda: "choices" in call(f"{bare}/v1/chat/completions", {}))
        for _ in range(ROUNDS):
            for name, url in (("bare", bare), ("node", node.http)):
                form = ("-t", f"multipart/form-data; boundary={BOUNDARY}")
                for what, body, more in (("generations", generations, ()), ("edits", edits, form)):
                    said = await load(
                        "req",
                        f"{url}/v1/images/{what}",
                        body,
                        *more,
                        c=CONNECTIONS,
                        d=SECONDS,
                        w=0.5,
                    )
                    if said["errors"]:
                        raise RuntimeError(said["last_error"])
                    seen.setdefault((what, name), []).append(float(said["rps"]))
    rows = []
    for what, least in (("generations", 1_000), ("edits", 400)):
        ours, theirs = (statistics.median(seen[what, name]) for name in ("node", "bare"))
        rows.append(
            Row(
                f"images of 1.4 MB a second, {what}",
                f"≥ {least:,}, then level with bare aiohttp",
                f"{ours:,.0f}; bare aiohttp {theirs:,.0f} (÷ {ours / theirs:.2f})",
                ours >= min(least, theirs),
            )
        )
    return rows


def _form() -> bytes:
    """Write a form with orders to the worker, the model's name, and an image."""
    fields = (("prompt", "[[bytes=1000]] wearing a beret"), ("model", MODEL))
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields
    ]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n'
    parts.append(
        f"{head}Content-Type: image/png\r\n\r\n".encode() + bytes(range(256)) * (BYTES // 256)
    )
    return b"".join(parts) + f"\r\n--{BOUNDARY}--\r\n".encode()
