"""How a request is sent on to another node."""

import pytest

from registry.records import Load, PeerId, Service
from router.candidates import Candidate
from router.dialects.peer import create
from router.errors import WorkerFailed, WorkerStale, WorkerTimeout, WorkerUnable, WorkerUnreachable
from router.requests import Kind, Request
from tests.router.peer_node import at, peer_node, way_to
from tests.router.world import MODEL, OWN, QUICK, chat, own, until, whole
from tests.workers.openai_worker import running


async def test_the_other_node_learns_who_asks_for_which_replica_and_nothing_of_the_caller() -> None:
    passed = {"traceparent": "00-1", "authorization": "Bearer k", "cookie": "c=1"}
    request = Request(
        "r-9", Kind.CHAT, f"p/{MODEL}", b'{"model":"p/llama"}', "application/json", passed=passed
    )
    async with (
        running() as worker,
        peer_node(own(worker.url, cid="2")) as node,
        way_to(node) as links,
    ):
        candidate = Candidate(node.identity.peer, Service("p", MODEL, "2"))
        async with create(links).answer(request, candidate) as answer:
            assert b'"llama"' in await whole(answer)
    [headers] = node.received
    assert node.callers == [OWN.peer]
    assert headers["x-modelvine-hop"] == OWN.peer
    assert (headers["x-modelvine-project"], headers["x-modelvine-cid"]) == ("p", "2")
    assert (headers["x-request-id"], headers["traceparent"]) == ("r-9", "00-1")
    assert not {"authorization", "cookie"} & {name.lower() for name in headers}


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("in_flight=3;queued=0;slots=8;rate=41.2;first=0.35", Load(3, 0, 8, 41.2, 0.35)),
        ("in_flight=3;queued=0;slots=8;rate=41.2", Load(3, 0, 8, 41.2, None)),
        ("in_flight=3", None),
        ("x" * 4_000, None),
        (None, None),
    ],
)
async def test_an_answer_brings_along_how_busy_its_worker_is_and_nonsense_harms_nothing(
    said: str | None, read: Load | None
) -> None:
    async with (
        running() as worker,
        peer_node(own(worker.url)) as node,
        way_to(node) as links,
    ):
        node.says = {} if said is None else {"x-modelvine-load": said}
        async with create(links).answer(chat(), at(node)) as answer:
            assert answer.load == read
            assert b'"llama"' in await whole(answer)
            assert not answer.headers


async def test_a_node_that_has_lost_the_model_says_that_we_are_behind() -> None:
    async with peer_node() as node, way_to(node) as links:
        with pytest.raises(WorkerStale):
            async with create(links).answer(chat(), at(node)):
                pass


async def test_a_node_whose_version_knows_no_such_requests_has_not_failed() -> None:
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as links:
        node.lacks = ("/v1/tokenize", "/v1/chat/completions")
        with pytest.raises(WorkerUnable, match="does not serve /v1/tokenize") as unable:
            async with create(links).answer(chat(kind=Kind.TOKENIZE), at(node)):
                pass
        assert not unable.value.blames_worker
        with pytest.raises(WorkerFailed):
            async with create(links).answer(chat(), at(node)):
                pass


async def test_a_node_that_nothing_is_known_of_is_unreachable() -> None:
    async with peer_node() as node, way_to(node) as links:
        with pytest.raises(WorkerUnreachable):
            async with create(links).answer(
                chat(), Candidate(PeerId("nobody"), Service("p", MODEL))
            ):
                pass


async def test_comments_of_a_node_that_waits_are_no_first_byte() -> None:
    hasty = QUICK.model_copy(update={"first_byte_timeout": 0.3})
    async with (
        running() as worker,
        peer_node(own(worker.url)) as node,
        way_to(node, settings=hasty) as links,
    ):
        node.murmurs = True
        worker.fail(delay_first=60)
        with pytest.raises(WorkerTimeout):
            async with create(links).answer(chat(stream=True), at(node)):
                pass
        await until(lambda: worker.hung_up == 1)


async def test_comments_of_a_node_that_then_answers_go_along() -> None:
    async with (
        running() as worker,
        peer_node(own(worker.url)) as node,
        way_to(node) as links,
    ):
        node.murmurs = True
        worker.fail(delay_first=0.1)
        async with create(links).answer(chat(stream=True), at(node)) as answer:
            assert b"data: {" in answer.first
            said = await whole(answer)
    assert said.startswith(b": wait\n\n")
    assert said.replace(b": wait\n\n", b"") == b"".join(worker.events(MODEL, usage=True))


async def test_a_failure_that_a_node_can_only_tell_after_its_comments_may_be_tried_elsewhere() -> (
    None
):
    async with (
        running() as worker,
        peer_node(own(worker.url)) as node,
        way_to(node) as links,
    ):
        node.murmurs = True
        worker.fail(status=500)
        with pytest.raises(WorkerFailed) as failed:
            async with create(links).answer(chat(stream=True), at(node)):
                pass
    assert failed.value.elsewhere
