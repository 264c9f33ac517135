"""The contract of all policies."""

from dataclasses import replace
from math import isfinite
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.records import Load, PeerId, Service
from router import policies
from router.requests import Request
from router.select.candidates import Candidate
from router.select.policy import order_candidates
from router.state.remote_load import Reported
from router.state.service_time import ServiceTime
from tests.router.world import chat

loads = st.builds(Load, st.integers(0, 65_535), st.integers(0, 65_535))
candidates = st.lists(
    st.builds(
        Candidate,
        st.sampled_from("abcdef").map(PeerId),
        st.builds(Service, st.just("p"), st.just("m"), st.text("xy", max_size=3)),
        in_flight=st.integers(0, 50),
        suspect=st.booleans(),
        unreachable=st.booleans(),
        ejected=st.booleans(),
        held_back=st.booleans(),
        report=st.none() | st.builds(Reported, loads, st.integers(0, 50), st.floats(0, 1e6)),
    ),
    max_size=12,
)
seeds = st.integers(0, 1000)


requests = st.builds(
    chat,
    stream=st.booleans(),
    body=st.sampled_from(
        [
            b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
            b'{"model":"m","messages":[]}',
            b'{"model":"m","messages":[1,null,{}]}',
            b'{"model":"m","messages":"hi"}',
            b'{"model":"m","prompt":"once upon"}',
            b'{"model":"m","prompt":[1,2]}',
            b'{"model":"m","messages":[' + b"[" * 500 + b"]" * 500 + b"]}",
            b"[]",
        ]
    ),
)


@pytest.mark.parametrize("name", policies.NAMES)
@given(request=requests, found=candidates, seed=seeds)
def test_the_order_holds_every_candidate_exactly_once(
    name: str, request: Request, found: list[Candidate], seed: int
) -> None:
    ordered = order_candidates(policies.load(name), request, tuple(found), Random(seed).random)
    assert sorted(map(repr, ordered)) == sorted(map(repr, found))


@pytest.mark.parametrize("name", policies.NAMES)
@given(request=requests, found=candidates, seed=seeds)
def test_the_same_chance_gives_the_same_order(
    name: str, request: Request, found: list[Candidate], seed: int
) -> None:
    one, other = (
        order_candidates(policies.load(name), request, found, Random(seed).random) for _ in range(2)
    )
    assert list(one) == list(other)


@pytest.mark.parametrize("name", policies.NAMES)
@given(request=requests, found=candidates, seed=seeds)
def test_trusted_candidates_come_before_doubtful_ones(
    name: str, request: Request, found: list[Candidate], seed: int
) -> None:
    ordered = order_candidates(policies.load(name), request, found, Random(seed).random)
    ranks = [candidate.rank for candidate in ordered]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize("name", policies.NAMES)
@given(request=requests, found=candidates, seed=seeds)
def test_every_candidate_has_its_reason_and_may_answer(
    name: str, request: Request, found: list[Candidate], seed: int
) -> None:
    policy = policies.load(name)
    for candidate in order_candidates(policy, request, found, Random(seed).random):
        assert policy.why(request, candidate, found)
        assert all(map(isfinite, policy.figures(request, candidate, found).values()))
        policy.begun(request)


@pytest.mark.parametrize("name", policies.NAMES)
@given(request=requests, found=candidates, seed=seeds)
def test_computing_an_order_does_not_change_the_next_one(
    name: str, request: Request, found: list[Candidate], seed: int
) -> None:
    policy = policies.load(name)
    orders = [order_candidates(policy, request, found, Random(seed).random) for _ in range(2)]
    assert [*orders[0]] == [*orders[1]]


@pytest.mark.parametrize("name", policies.NAMES)
def test_every_policy_has_a_one_sentence_summary(name: str) -> None:
    assert 20 < len(policies.summary(name)) < 200


def test_a_policy_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="p2c"):
        policies.load("astrology")


@pytest.mark.parametrize("name", policies.NAMES)
def test_candidates_that_miss_the_latency_aim_come_after_those_that_meet_it(name: str) -> None:
    def at(node: str, seconds: float) -> Candidate:
        service = Service("p", "m")
        return Candidate(PeerId(node), service, time=ServiceTime(fixed=seconds))

    candidates = [at("slow", 9.0), at("quick", 0.1), at("slower", 12.0)]
    request = replace(chat(), aim=1.0)
    for seed in range(20):
        ordered = order_candidates(policies.load(name), request, candidates, Random(seed).random)
        assert ordered[0].node == "quick"
        assert len(ordered) == 3


@pytest.mark.parametrize("name", policies.NAMES)
def test_a_background_session_goes_to_a_candidate_with_a_free_slot(name: str) -> None:
    def at(node: str, in_flight: int, seconds: float) -> Candidate:
        report = Reported(Load(in_flight, slots=2), ours=in_flight, age=0.0)
        time, service = ServiceTime(fixed=seconds), Service("p", "m")
        return Candidate(PeerId(node), service, in_flight=in_flight, report=report, time=time)

    candidates = [at("full", 2, 0.1), at("free", 1, 9.0), at("fuller", 3, 0.1)]
    request = replace(chat(), background=True, session="s")
    for seed in range(20):
        ordered = order_candidates(policies.load(name), request, candidates, Random(seed).random)
        assert ordered[0].node == "free"
        assert len(ordered) == 3
