"""Recent requests: the last ones in their order, and no more than that."""

from node.faces.access_log import Account
from node.observe.recent import MAX_REMEMBERED, MAX_WORDS, RecentRequests
from registry.records import Service
from router.errors import WorkerBusy, WorkerFailed
from router.outcome import Outcome
from router.requests import Kind
from router.select.candidates import Candidate


def ended(recent, *names):
    for name in names:
        recent.ended.append(Account(name, Kind.CHAT, 0.0))
        recent.count += 1


def test_the_last_requests_are_remembered_and_their_numbers_go_on():
    recent = RecentRequests(lambda: 5.0, limit=3)
    ended(recent, *"abcde")
    assert [request.id for request in recent.ended] == ["c", "d", "e"]
    assert [request.id for request in recent.since(4)] == ["e"]
    assert [request.id for request in recent.since(0)] == ["c", "d", "e"]
    assert not [*recent.since(5)]


def test_a_failed_attempt_is_kept_with_its_request_and_cut():
    recent = RecentRequests(lambda: 5.0, limit=1)
    error = WorkerFailed("x" * 2 * MAX_WORDS)
    for request in ("r-1", "r-2"):
        candidate = Candidate("node", Service("p", "m", "c"))
        recent.failed_attempt(
            Outcome(candidate, error, 0.5, request=request, circuit="open"), error
        )
    [attempt] = recent.failed
    assert (attempt.request, attempt.at, attempt.node, attempt.model, attempt.cid) == (
        "r-2", 5.0, "node", "m", "c",
    )  # fmt: skip
    assert attempt.circuit == "open"
    assert (attempt.error, attempt.seconds, len(attempt.why)) == ("WorkerFailed", 0.5, MAX_WORDS)


def test_refusals_for_lack_of_room_are_counted_by_model_and_node():
    recent = RecentRequests(lambda: 5.0)
    candidate = Candidate("node", Service("p", "m", "c"))
    for error in (WorkerBusy("full"), WorkerBusy("full"), WorkerFailed("broken")):
        recent.failed_attempt(Outcome(candidate, error, 0.5, request="r", circuit="closed"), error)
    recent.found_no_room("m", "node", 3)
    assert recent.take_refused() == (("m", "node", 5),)
    assert recent.take_refused() == ()
    for number in range(MAX_REMEMBERED + 1):
        recent.found_no_room(f"{number}-{'x' * 1_000}", "node")
    assert len(recent.refused) == MAX_REMEMBERED
    assert max(len(model) for model, _ in recent.refused) == 100
