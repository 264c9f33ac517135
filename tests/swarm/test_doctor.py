"""`modelvine doctor` at real nodes: it says why they do not join each other, and reveals no secret.

A node's log also keeps the lines of its helpers.
"""

import asyncio
import base64
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from node.secrets.secret_files import write_new_swarm_key
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.processes import lines
from tests.swarm.waiting import until
from tests.workers.openai_worker import running

pytestmark = pytest.mark.swarm

ROOT = Path(__file__).parents[2]


async def modelvine(node: Node, *arguments: str) -> Any:
    """Run a command at a node; return the JSON that it prints."""
    command = [sys.executable, "-m", "node", *arguments, "--data-dir", str(node.folder)]
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, cwd=ROOT, check=False
    )
    return json.loads(ended.stdout)


async def finding(node: Node, check: str, text: str = "") -> dict[str, Any]:
    """Wait until the doctor has a finding of a check that contains these words; return it."""
    found: dict[str, Any] = {}

    async def told() -> bool:
        findings = (await modelvine(node, "doctor", "--json"))["findings"]
        found.update(next((row for row in findings if row["check"] == check), {}))
        return bool(found) and text in found["what"]

    await until(told, within=20, otherwise=f"nothing is said of {check} {text}")
    return found


async def test_the_doctor_says_why_nodes_do_not_join_and_what_to_do(
    swarm: Swarm, tmp_path: Path, client: Client
) -> None:
    one = await asyncio.to_thread(swarm.start, "one")
    two = await asyncio.to_thread(swarm.start, Start("two"), known=[one])
    await client.met([one, two])
    key = tmp_path / "swarm.key"
    write_new_swarm_key(key)
    private = Start("private", {"node": {"swarm_key": str(key)}, "mesh": {"bootstrap": [one.p2p]}})
    # Its address is that of one node, and its id another's.
    elsewhere = f"{one.p2p.rpartition('/')[0]}/{two.peer}"
    wrong = Start("wrong", {"mesh": {"bootstrap": [elsewhere]}})
    three, four = await asyncio.to_thread(
        lambda: [swarm.start(private), swarm.start(wrong)],
    )
    differs = await finding(three, "join", "the swarm keys differ")
    assert (differs["state"], "--swarm-key" in differs["do"]) == ("fail", True)
    failed = await finding(one, "handshakes")
    assert (failed["state"], "--swarm-key" in failed["do"]) == ("warn", True)
    other = await finding(four, "join", "wrong peer id")
    assert (other["state"], one.peer in other["what"]) == ("fail", True)


async def test_a_support_file_of_a_running_node_holds_its_log_and_no_secret(
    swarm: Swarm, tmp_path: Path, client: Client
) -> None:
    header, prompt, user = "canary-worker-header", "canary-prompt", "canary-user"
    node = await asyncio.to_thread(swarm.start, "supported")
    created = await client.post(node, "/api/v1/keys", {"keys": [{"name": user}]})
    key = json.loads(created.body)["keys"][0]["key"]
    async with running() as worker:
        row = {"project": "p", "model": "tiny", "api": worker.url, "type": 0}
        headers = {"authorization": f"Bearer {header}"}
        await client.post(node, "/api/v0/ai/model/register", {**row, "headers": headers})
        body = {"model": "tiny", "messages": [{"role": "user", "content": prompt}]}
        authorization = {"Authorization": f"Bearer {key}"}
        answer = await client.post(node, "/v1/chat/completions", body, headers=authorization)
        assert answer.status == 200
        file = tmp_path / "support.tar.gz"
        report = await modelvine(node, "doctor", "--json", "--bundle", str(file))
    assert report["fails"] == 0
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    texts = {path.name: path.read_text() for path in (tmp_path / "support").iterdir()}
    assert "kind=chat/completions" in texts["logs.json"]
    files = [node.folder / name for name in ("control.token", "identity.key")]
    secrets = [header, prompt, user, key, *(path.read_text().strip() for path in files)]
    for secret in secrets:
        forms = (secret, secret.encode().hex(), base64.b64encode(secret.encode()).decode()[:-4])
        assert [n for n, text in texts.items() if any(form in text for form in forms)] == []


async def test_the_log_of_a_node_holds_the_lines_of_its_helpers(
    swarm: Swarm, client: Client
) -> None:
    node = await asyncio.to_thread(swarm.start, Start("helped", {"node": {"workers": 2}}))
    async with running() as worker, lines(node, 1) as by_process:
        await client.register(node, "p", ["tiny"], worker.url)
        for (line,) in by_process.values():
            assert (await line.chat("tiny"))[0] == 200
    logged = (await client.get(node, "/api/v1/logs"))["logs"]
    processes = {line["process"] for line in logged if line["logger"] == "modelvine.requests"}
    assert processes == by_process.keys()
    assert [line["time"] for line in logged] == sorted(line["time"] for line in logged)


async def test_the_doctor_reports_how_open_a_running_node_is(swarm: Swarm) -> None:
    # The doctor's own settings are the defaults: only the node knows how it was started.
    node = await asyncio.to_thread(swarm.start, Start("open", {"node": {"open": "everybody"}}))
    findings = (await modelvine(node, "doctor", "--json"))["findings"]
    (access,) = (row for row in findings if row["check"] == "access")
    assert (access["state"], "HTTP (/v1, /api)" in access["what"]) == ("warn", True)
