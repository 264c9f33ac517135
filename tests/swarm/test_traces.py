"""One request, one trace: spans of two nodes and a worker, and their metrics, as a collector has them.

The collector is rotel, a real one, which passes on to the tests' receiver; where rotel is missing, nodes send to that directly.
"""

import asyncio
import importlib.util
import re
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson
import pytest

from node.observe import genai
from node.observe.otlp import MEASUREMENTS_EVERY
from tests.otlp_receiver import GotHistogram, GotSpan, Receiver, receiving
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.processes import lines
from tests.swarm.waiting import SLACK, until
from tests.workers.openai_worker import OpenAIWorker, running

pytestmark = pytest.mark.swarm

MODEL = "traced"
PROMPT, HEADER, KEY_NAME = "canary-prompt-31fe", "canary-header-9a0b", "canary-user-77d2"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}
ANSWER = "Hello there"
PATH = "/v1/chat/completions"
SOON = 10.0
MEASURED_WITHIN = SLACK * MEASUREMENTS_EVERY

WHOLE = 7
"""Spans of a chat over a hop: face, choice and attempt of each node, and the call of the worker."""


@dataclass(slots=True)
class Scene:
    """Two nodes that trace, with a worker at the second, and what their collector got."""

    asked: Node
    serving: Node
    worker: OpenAIWorker
    got: Receiver
    client: Client

    async def chat(self, *, flags: str = "01", **fields: object) -> tuple[str, str]:
        """Ask with a trace of the caller's; return its id, and the caller's span."""
        trace, span = secrets.token_hex(16), secrets.token_hex(8)
        headers = {"traceparent": f"00-{trace}-{span}-{flags}", "X-Forwarded-For": HEADER}
        answer = await self.client.post(self.asked, PATH, CHAT | fields, headers=headers)
        assert answer.status == 200, answer.body
        return trace, span

    async def spans(self, trace: str, count: int) -> list[GotSpan]:
        """Wait for so many spans of a trace."""
        try:
            await until(lambda: len(self.got.of(trace)) >= count, within=SOON, otherwise="spans are missing")  # fmt: skip
        except AssertionError:
            print(*self.got.of(trace), sep="\n")
            raise
        return self.got.of(trace)

    def measured(self, node: Node, name: str) -> dict[tuple[object, ...], GotHistogram]:
        """Return the newest histograms of a node under a name, by the values of their attributes in order."""
        histograms = sorted(self.got.histograms, key=lambda one: one.at)
        return {
            tuple(value for _, value in sorted(one.attributes.items())): one
            for one in histograms
            if one.name == name and one.resource[genai.INSTANCE] == node.peer
        }


@asynccontextmanager
async def collector(target: str, folder: Path) -> AsyncIterator[str]:
    """Run rotel before a receiver, and yield its URL for traces; the receiver's own where there is no rotel."""
    spec = importlib.util.find_spec("rotel")
    if spec is None or spec.origin is None:
        print("rotel is not installed: traces go to the tests' receiver")
        yield target
        return
    with (
        socket.create_server(("127.0.0.1", 0)) as http,
        socket.create_server(("127.0.0.1", 0)) as grpc,
    ):
        addresses = [f"127.0.0.1:{free.getsockname()[1]}" for free in (http, grpc)]
    base = target.removesuffix("/v1/traces")
    program = Path(spec.origin).with_name("rotel-agent")
    arguments = [
        "--otlp-http-endpoint", addresses[0], "--otlp-grpc-endpoint", addresses[1], "--exporter", "otlp",
        "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", base,
        "--otlp-exporter-traces-endpoint", target, "--traces-batch-timeout", "200ms",
        "--otlp-exporter-metrics-endpoint", f"{base}/v1/metrics", "--metrics-batch-timeout", "200ms",
    ]  # fmt: skip
    with (folder / "rotel.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program, "start", *arguments, stdout=log, stderr=log
        )
    try:
        await until(partial(_listens, addresses[0]), within=SOON, otherwise="rotel does not listen")
        yield f"http://{addresses[0]}/v1/traces"
    finally:
        process.terminate()
        await process.wait()


async def _listens(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(*address.split(":"))
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


@pytest.fixture
async def scene(tmp_path: Path, client: Client) -> AsyncIterator[Scene]:
    async with receiving() as got, running() as worker, collector(got.url, tmp_path) as url:
        settings = {
            "node": {"traces": url, "open": "everybody", "log_level": "debug", "workers": 2},
            "router": {"policy": "local_first"},
        }
        with Swarm(tmp_path) as swarm:
            asked, serving = await asyncio.to_thread(
                swarm.start_all, Start("asked", settings), Start("serving", settings)
            )
            await client.register(serving, "p", [MODEL], worker.url)
            await client.listed([asked], MODEL)
            yield Scene(asked, serving, worker, got, client)


def one(spans: list[GotSpan], name: str, node: str, **expected: object) -> GotSpan:
    """Return the span of a name that a node sent, whose attributes are these."""
    matching = [
        s for s in spans
        if s.name.startswith(name) and s.resource[genai.INSTANCE] == node
        and all(getattr(s, key) == value for key, value in expected.items())
    ]  # fmt: skip
    assert len(matching) == 1, (name, matching)
    return matching[0]


async def test_one_trace_goes_over_both_nodes_to_the_worker(scene: Scene) -> None:
    here, there = scene.asked.peer, scene.serving.peer
    for stream in (False, True):
        trace, caller = await scene.chat(stream=stream)
        spans = await scene.spans(trace, WHOLE)
        face = one(spans, f"chat {MODEL}", here, kind="server")
        assert face.parent == caller
        assert one(spans, "choose", here).parent == face.id
        hop = one(spans, "attempt", here)
        assert (hop.parent, hop.kind, hop.attributes[genai.NODE]) == (face.id, "client", there)
        served = one(spans, f"chat {MODEL}", there, kind="server")
        assert served.parent == hop.id
        attempt = one(spans, "attempt", there)
        assert attempt.parent == served.id
        call = one(spans, f"chat {MODEL}", there, kind="client")
        assert call.parent == attempt.id
        received = scene.worker.received[-1].headers["traceparent"]
        assert received == f"00-{trace}-{call.id}-01"
        assert not any(span.failed for span in spans)
        for span in (face, served, call):
            assert span.attributes[genai.OPERATION] == "chat"
            assert span.attributes[genai.RESPONSE_MODEL] == MODEL
            assert span.attributes[genai.STATUS] == 200
            # Outside of streams this worker reports no tokens.
            assert (span.attributes.get(genai.OUTPUT_TOKENS, 0) > 0) is stream
            assert (genai.FIRST_CHUNK in span.attributes) is stream
        assert face.events == (genai.FIRST_BYTE,)
        # Two clocks of one machine.
        assert (
            face.began <= hop.began <= served.began <= attempt.began <= attempt.ended <= face.ended
        )


async def test_an_attempt_that_fails_is_a_failed_span_and_the_next_one_another(
    scene: Scene,
) -> None:
    async with running() as failing:
        failing.fail(status=500)
        await scene.client.register(scene.asked, "q", [MODEL], failing.url)
        trace, _ = await scene.chat()
        spans = await scene.spans(trace, WHOLE + 2)
        sent = failing.received[-1].headers["traceparent"]
    here, there = scene.asked.peer, scene.serving.peer
    face = one(spans, f"chat {MODEL}", here, kind="server")
    failed_attempt = one(spans, "attempt", here, kind="internal")
    assert (failed_attempt.failed, failed_attempt.attributes[genai.ERROR]) == (True, "WorkerFailed")
    call = one(spans, f"chat {MODEL}", here, kind="client")
    assert (call.parent, call.failed, sent) == (failed_attempt.id, True, f"00-{trace}-{call.id}-01")
    again = one(spans, "attempt", here, kind="client")
    assert (again.failed, again.attributes[genai.ATTEMPT]) == (False, 2)
    assert one(spans, f"chat {MODEL}", there, kind="server").parent == again.id
    assert (face.failed, face.attributes[genai.ATTEMPTS]) == (False, 2)


async def test_a_request_marked_as_not_sampled_has_no_spans(scene: Scene) -> None:
    unwanted, span = await scene.chat(flags="00")
    assert scene.worker.received[-1].headers["traceparent"] == f"00-{unwanted}-{span}-00"
    sampled, _ = await scene.chat()
    await scene.spans(sampled, WHOLE)
    assert scene.got.of(unwanted) == []


async def test_helpers_trace_too_and_a_trace_begins_where_its_caller_has_none(scene: Scene) -> None:
    async with lines(scene.asked) as by_process:
        for [line] in by_process.values():
            status, _ = await line.chat(MODEL)
            assert status == 200

    def faces() -> list[GotSpan]:
        return [s for s in scene.got.spans if s.kind == "server" and not s.parent]

    await until(lambda: len(faces()) == 2, within=SOON, otherwise="a process does not trace")
    assert len({span.trace for span in faces()}) == 2
    for span in faces():
        await scene.spans(span.trace, WHOLE)


async def test_a_collector_has_the_sums_of_all_processes_under_the_conventions_names(
    scene: Scene,
) -> None:
    async with lines(scene.asked) as by_process:
        for [line] in by_process.values():
            assert (await line.chat(MODEL))[0] == 200
    for _ in range(3):
        await scene.chat(stream=True)
    nobody = {"model": "canary-model", "messages": []}
    assert (await scene.client.post(scene.asked, PATH, nobody)).status == 404
    nodes = (scene.asked, scene.serving)
    labels = ("chat", "modelvine", MODEL)

    def all_measured() -> bool:
        histograms = [scene.measured(node, genai.REQUEST_DURATION).get(labels) for node in nodes]
        return [histogram and histogram.count for histogram in histograms] == [5, 5]

    await until(all_measured, within=MEASURED_WITHIN, otherwise="metrics are missing")
    for node in nodes:
        for name in (genai.FIRST_BYTE_TIME, genai.TIME_PER_OUTPUT):
            [(attributes, histogram)] = scene.measured(node, name).items()
            assert (attributes, histogram.count, histogram.unit) == (labels, 3, "s")
            assert histogram.bounds == genai.INSTRUMENTS[name].bounds
    assert scene.measured(scene.asked, genai.TOKENS_USED) == {}
    used = scene.measured(scene.serving, genai.TOKENS_USED)
    # The worker reports five input and six output tokens of each stream.
    assert {key: (histogram.count, histogram.sum) for key, histogram in used.items()} == {
        (*labels, "input"): (3, 15),
        (*labels, "output"): (3, 18),
    }
    failed = scene.measured(scene.asked, genai.REQUEST_DURATION)
    assert {key: histogram.count for key, histogram in failed.items()} == {
        labels: 5,
        ("UnknownModel", "chat", "modelvine"): 1,
    }
    assert {histogram.schema for histogram in scene.got.histograms} == {genai.SCHEMA}
    assert all(histogram.cumulative for histogram in scene.got.histograms)


async def test_no_prompt_no_answer_and_nothing_about_the_caller_is_in_a_span_or_metric(
    scene: Scene,
) -> None:
    created = await scene.client.post(scene.asked, "/api/v1/keys", {"keys": [{"name": KEY_NAME}]})
    key = orjson.loads(created.body)["keys"][0]["key"]
    trace = secrets.token_hex(16)
    headers = {
        "traceparent": f"00-{trace}-{'1' * 16}-01", "tracestate": "a=canary-state-1c",
        "Authorization": f"Bearer {key}", "X-Forwarded-For": HEADER, "User-Agent": HEADER,
        "x-modelvine-session": HEADER,
    }  # fmt: skip
    answer = await scene.client.post(scene.asked, PATH, CHAT, headers=headers)
    assert ANSWER.encode() in answer.body
    scene.worker.fail(status=400, refusal=f'{{"error":"{PROMPT}"}}'.encode())
    answer = await scene.client.post(scene.asked, PATH, CHAT, headers=headers)
    assert answer.status == 400
    await scene.spans(trace, 2 * WHOLE)

    def both_measured() -> bool:
        return all(scene.measured(n, genai.REQUEST_DURATION) for n in (scene.asked, scene.serving))

    await until(both_measured, within=MEASURED_WITHIN, otherwise="no metrics come")
    everything = b"".join(scene.got.raw)
    assert MODEL.encode() in everything
    for secret in (PROMPT, ANSWER, HEADER, KEY_NAME, key, "canary"):
        assert secret.encode() not in everything


async def test_an_unreachable_collector_costs_no_answer_and_one_line_of_the_log(
    swarm: Swarm, client: Client
) -> None:
    settings = {"node": {"traces": "http://127.0.0.1:9/v1/traces", "open": "everybody"}}
    node = await asyncio.to_thread(swarm.start, Start("alone", settings))
    dropped = re.compile(r'^modelvine_spans_total\{outcome="dropped"\} (\d+)', re.MULTILINE)

    async def lost() -> int:
        match = dropped.search(await client.metrics(node))
        return int(match[1]) if match else 0

    async with running() as worker:
        await client.register(node, "p", [MODEL], worker.url)
        for count in (1, 2):
            assert (await client.post(node, PATH, CHAT)).status == 200

            async def all_lost(count: int = count) -> bool:
                return await lost() == 4 * count

            await until(all_lost, within=SOON, otherwise="spans are not counted")
    assert node.log.count("spans are dropped") == 1
    assert await asyncio.to_thread(swarm.stop, node) == 0
