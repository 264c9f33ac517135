"""Laws of answer times: by worker and kind, bounded, and how many requests were there."""

from registry.records import Service
from router.answer_times import MAX_OWN, AnswerTimes, Occupancy
from router.requests import Kind

LLAMA = Service("p", "llama")


def test_a_crowd_is_how_many_were_there_on_average() -> None:
    crowd = Occupancy()
    crowd.change(1, 0.0)
    crowd.change(1, 2.0)
    crowd.change(-1, 3.0)
    assert crowd.seconds(4.0) / 4.0 == 5 / 4
    crowd.change(-1, 4.0)
    assert crowd.seconds(9.0) == crowd.seconds(4.0)


def test_each_kind_of_request_has_its_own() -> None:
    times = AnswerTimes()
    assert times.of_own(LLAMA, Kind.CHAT) is None
    chats = times.estimator(LLAMA, Kind.CHAT, shares=False)
    chats.take(2.0, kilobytes=1, tokens=100, concurrency=1)
    assert times.estimator(LLAMA, Kind.CHAT, shares=True) is chats
    assert times.of_own(LLAMA, Kind.CHAT) is chats.time
    assert times.of_own(LLAMA, Kind.EMBEDDING) is None


def test_workers_that_come_and_go_are_not_remembered_without_end() -> None:
    times = AnswerTimes()
    for number in range(MAX_OWN + 1):
        one = times.estimator(Service("p", f"m{number}"), Kind.CHAT, shares=False)
        one.take(1.0, kilobytes=1, tokens=1, concurrency=1)
    assert times.of_own(Service("p", "m0"), Kind.CHAT) is None
    assert times.of_own(Service("p", "m1"), Kind.CHAT) is not None
