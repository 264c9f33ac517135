"""Laws of answer times: kept by worker and kind, and bounded."""

from registry.records import Service
from router.answer_times import MAX_OWN, AnswerTimes
from router.requests import Kind
from router.workers import Worker

LLAMA = Service("p", "llama")


def worker(model: str) -> Worker:
    return Worker(Service("p", model), "http://127.0.0.1:1", capacity=1)


def test_each_kind_of_request_has_its_own_times() -> None:
    times = AnswerTimes()
    assert times.own_service_time(LLAMA, Kind.CHAT) is None
    chats = times.estimator(worker("llama"), Kind.CHAT)
    chats.record_answer(2.0, kilobytes=1, tokens=100, concurrency=1)
    assert times.estimator(worker("llama"), Kind.CHAT) is chats
    assert times.own_service_time(LLAMA, Kind.CHAT) is chats.time
    assert times.own_service_time(LLAMA, Kind.EMBEDDING) is None


def test_the_number_of_remembered_workers_is_bounded() -> None:
    times = AnswerTimes()
    for number in range(MAX_OWN + 1):
        estimator = times.estimator(worker(f"m{number}"), Kind.CHAT)
        estimator.record_answer(1.0, kilobytes=1, tokens=1, concurrency=1)
    assert times.own_service_time(Service("p", "m0"), Kind.CHAT) is None
    assert times.own_service_time(Service("p", "m1"), Kind.CHAT) is not None
