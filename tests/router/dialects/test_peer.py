"""The peer dialect: passing a request on to another node."""

from dataclasses import replace

import pytest

from registry.records import Ability, Load, PeerId, Service
from router.dialects.peer import create
from router.errors import (
    WorkerError,
    WorkerFailed,
    WorkerStale,
    WorkerTimeout,
    WorkerUnable,
    WorkerUnreachable,
)
from router.http.connection import Connection
from router.http.errors import CannotConnect
from router.http.reply import Reply
from router.peers.headers import PATIENCE, SERVICE_TIME, WAIT
from router.requests import Kind, PassedHeaders, Request
from router.select.candidates import Candidate
from router.state.service_time import ServiceTime, format_service_time
from router.translate.verbatim import LLAMA_STACK, TGI, Verbatim
from tests.router.peer_node import at, peer_node, way_to
from tests.router.world import MODEL, OWN, QUICK, chat, own, until, whole
from tests.workers.openai_worker import running


async def test_the_other_node_learns_the_asking_node_and_the_replica_but_nothing_of_the_caller() -> (
    None
):
    passed = {"traceparent": "00-1", "authorization": "Bearer k", "cookie": "c=1"}
    request = Request(
        "r-9",
        Kind.CHAT,
        f"p/{MODEL}",
        b'{"model":"p/llama"}',
        "application/json",
        passed=PassedHeaders(passed),
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
async def test_an_answer_carries_the_load_of_its_worker_and_nonsense_is_ignored(
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


async def test_an_answer_carries_the_service_time() -> None:
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as links:
        for time in (ServiceTime(0.25, answers=7), None):
            node.says = {SERVICE_TIME: format_service_time(time) if time else "soon"}
            async with create(links).answer(chat(), at(node)) as answer:
                assert answer.service_time == time
                assert not answer.headers


async def test_a_request_with_alternatives_states_how_long_to_wait_for_a_slot() -> None:
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as links:
        for patience in (0.25, 1e9, 0.0):
            request = replace(chat(), waits=False, patience=patience)
            async with create(links).answer(request, at(node)):
                pass
        async with create(links).answer(replace(chat(), patience=1.0), at(node)):
            pass
    sent = [(headers.get(PATIENCE), WAIT in headers) for headers in node.received]
    assert sent == [("0.250", False), ("3600.000", False), (None, False), (None, True)]


async def test_a_node_that_has_lost_the_model_makes_the_candidate_stale() -> None:
    async with peer_node() as node, way_to(node) as links:
        with pytest.raises(WorkerStale):
            async with create(links).answer(chat(), at(node)):
                pass


async def test_a_path_that_an_older_node_lacks_does_not_count_against_it() -> None:
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as links:
        node.lacks = ("/v1/tokenize", "/v1/chat/completions")
        with pytest.raises(WorkerUnable, match="does not serve /v1/tokenize") as unable:
            async with create(links).answer(chat(kind=Kind.TOKENIZE), at(node)):
                pass
        assert not unable.value.blames_worker
        with pytest.raises(WorkerFailed):
            async with create(links).answer(chat(), at(node)):
                pass


async def test_an_unknown_node_is_unreachable() -> None:
    async with peer_node() as node, way_to(node) as links:
        with pytest.raises(WorkerUnreachable):
            async with create(links).answer(
                chat(), Candidate(PeerId("nobody"), Service("p", MODEL))
            ):
                pass


async def test_comments_of_a_waiting_node_are_no_first_byte() -> None:
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


async def test_comments_before_an_answer_are_passed_on() -> None:
    async with (
        running() as worker,
        peer_node(own(worker.url)) as node,
        way_to(node) as links,
    ):
        node.murmurs = True
        worker.fail(delay_first=0.1)
        async with create(links).answer(chat(stream=True), at(node)) as answer:
            assert b"data: {" in answer.first
            body = await whole(answer)
    assert body.startswith(b": wait\n\n")
    assert body.replace(b": wait\n\n", b"") == b"".join(worker.events(MODEL, usage=True))


async def test_a_failure_reported_after_comments_may_be_retried_elsewhere() -> None:
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


SPOKEN = Verbatim(TGI, "generate", b'{"inputs":"hi"}')
IN_TGIS = Service("p", MODEL, abilities=int(Ability.TGI))


@pytest.mark.parametrize("service", [Service("p", MODEL), IN_TGIS], ids=["silent", "announced"])
async def test_a_callers_verbatim_body_is_sent_only_where_the_record_says_it_is_taken(
    service: Service,
) -> None:
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as links:
        request = replace(chat(kind=Kind.COMPLETION), verbatim=SPOKEN)
        if service is IN_TGIS:
            # Both bodies, one after the other: this stub node reads only the first and fails to parse the rest.
            with pytest.raises(WorkerError):
                async with create(links).answer(request, Candidate(node.identity.peer, service)):
                    pass
        else:
            async with create(links).answer(request, at(node)) as answer:
                assert not answer.verbatim
        header = node.received[0].get("x-modelvine-verbatim")
        assert header == ("tgi_http generate 15" if service is IN_TGIS else None)


async def test_an_answer_in_a_protocol_that_the_request_does_not_have_is_a_failure() -> None:
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as links:
        node.says = {"x-modelvine-verbatim": TGI}
        for request in (chat(), replace(chat(), verbatim=replace(SPOKEN, protocol=LLAMA_STACK))):
            with pytest.raises(WorkerFailed, match="another protocol"):
                async with create(links).answer(request, at(node)):
                    pass


@pytest.mark.parametrize("needs", ["", "watermark"])
async def test_a_verbatim_body_that_does_not_fit_is_left_out_unless_a_field_needs_it(
    needs: str,
) -> None:
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as links:
        links.settings = links.settings.model_copy(update={"max_body_bytes": 64})
        request = replace(chat(), verbatim=replace(SPOKEN, needs=needs))
        sent = create(links).answer(request, Candidate(node.identity.peer, IN_TGIS))
        if needs:
            with pytest.raises(WorkerUnable) as unable:
                await sent.__aenter__()
            assert unable.value.param == needs
        else:
            async with sent as answer:
                assert not answer.verbatim


async def test_a_request_can_be_prepared_once_the_way_to_its_node_is_proven() -> None:
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as links:
        peer, candidate = create(links), at(node)
        assert peer.prepare(chat(), candidate) is None
        async with peer.answer(chat(), candidate) as answer:
            await whole(answer)
        assert peer.prepare(chat(stream=True), candidate) is not None
        call = peer.prepare(chat(), candidate)
        assert call is not None
        connection = call.pool.take_idle()
        assert connection is not None
        node.says = {"x-modelvine-load": "in_flight=3;queued=0;slots=8;rate=41.2"}
        reply = connection.begin(call.head, call.body)
        assert peer.answer_if_complete(candidate, reply) is None
        await until(lambda: reply.complete)
        whole_one = peer.answer_if_complete(candidate, reply)
        assert whole_one is not None
        assert whole_one.load == Load(3, 0, 8, 41.2, None)


async def test_a_request_that_was_refused_unread_is_sent_again() -> None:
    async with running() as worker, peer_node(own(worker.url)) as node, way_to(node) as links:
        peer, candidate = create(links), at(node)
        async with links.visit(candidate.node) as link:
            reply = Reply(Connection(link.pool))
        reply.fail(CannotConnect("the other side accepts no more requests"))
        async with peer.resume(chat(), candidate, reply) as answer:
            assert b'"llama"' in await whole(answer)
