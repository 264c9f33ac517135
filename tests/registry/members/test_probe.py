"""Rounds of probes: whose turn is next, what is tried, what an answer or its absence means, when a connection is cut."""

import pytest

from registry.members.liveness import Evidence, MemberHealth, Status, initial_health
from registry.members.probe import (
    INDIRECT_PROBES,
    CloseConnection,
    Found,
    NoteEvidence,
    OwnProbe,
    ProbeSchedule,
    ProbeStep,
    Round,
    answer_timeout,
    choose_intermediaries,
    dial_timeout,
    probe_steps,
)
from registry.records import PeerId
from registry.settings import RegistrySettings

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
ALIVE = MemberHealth(Status.ALIVE, heard=0.0, since=0.0, why=Evidence.WORD)
BARRED = ALIVE.with_path_failure(Evidence.MISSED, 1.0)
LOST = MemberHealth(Status.LOST, heard=0.0, since=0.0, why=Evidence.DOUBT)
REACHED, PROVEN, NOTHING = Found(reached=True), Found(proven=True), Found()


def told(probe_round: Round, *answers: Found) -> list[ProbeStep | NoteEvidence | CloseConnection]:
    """Run a round whose attempts find this in turn; return its steps."""
    left, steps = list(answers), [next(probe_round)]
    while True:
        try:
            steps.append(
                probe_round.send(left.pop(0) if isinstance(steps[-1], ProbeStep) else NOTHING)
            )
        except StopIteration:
            assert not left
            return steps


def look(health: MemberHealth, *, linked: bool, dial: bool = False) -> Round:
    return probe_steps(health, linked=linked, intermediaries=(B, C), dial=dial)


def test_an_answer_ends_a_round() -> None:
    assert told(look(ALIVE, linked=True), REACHED) == [ProbeStep(OwnProbe.ASK)]


def test_after_a_missed_answer_the_node_is_asked_again_while_intermediaries_ask_too() -> None:
    assert told(look(ALIVE, linked=True), NOTHING, REACHED) == [
        ProbeStep(OwnProbe.ASK),
        NoteEvidence(Evidence.MISSED),
        ProbeStep(OwnProbe.ASK, (B, C)),
    ]


@pytest.mark.parametrize(
    ("found", "evidence"), [(NOTHING, Evidence.UNREACHED), (PROVEN, Evidence.MISSED)]
)
def test_a_connection_that_failed_twice_is_cut_whatever_intermediaries_prove(
    found: Found, evidence: Evidence
) -> None:
    steps = told(look(ALIVE, linked=True), NOTHING, found)
    assert steps[-2:] == [CloseConnection(), NoteEvidence(evidence)]


def test_a_node_without_connection_that_an_intermediary_proves_is_not_dialled() -> None:
    assert told(look(ALIVE, linked=False), PROVEN) == [ProbeStep(OwnProbe.NOTHING, (B, C))]


def test_a_node_without_connection_that_no_intermediary_proves_is_dialled() -> None:
    steps = told(look(ALIVE, linked=False), NOTHING, NOTHING)
    assert steps == [
        ProbeStep(OwnProbe.NOTHING, (B, C)),
        ProbeStep(OwnProbe.DIAL),
        NoteEvidence(Evidence.UNREACHED),
    ]


@pytest.mark.parametrize(("pulse", "dial"), [(BARRED, False), (ALIVE, True)])
@pytest.mark.parametrize(
    ("found", "evidence"), [(PROVEN, Evidence.MISSED), (NOTHING, Evidence.UNREACHED)]
)
def test_where_our_own_way_matters_intermediaries_cannot_stand_in_for_it(
    pulse: MemberHealth, dial: bool, found: Found, evidence: Evidence
) -> None:
    steps = told(look(pulse, linked=False, dial=dial), found)
    assert steps == [ProbeStep(OwnProbe.DIAL, (B, C)), NoteEvidence(evidence)]
    assert told(look(pulse, linked=False, dial=dial), REACHED) == steps[:1]


def test_a_lost_node_that_connects_costs_one_question() -> None:
    assert told(look(LOST, linked=True), NOTHING) == [
        ProbeStep(OwnProbe.ASK),
        NoteEvidence(Evidence.MISSED),
    ]


def test_intermediaries_are_few_never_the_node_itself_and_begin_with_the_one_that_proved_it_last() -> (
    None
):
    connected = {PeerId(f"peer-{number}"): 0.1 for number in range(20)} | {A: 0.1, B: 0.1}
    chances = iter(range(100))
    chosen = choose_intermediaries(connected, A, B, lambda: float(-next(chances)))
    assert len(chosen) == INDIRECT_PROBES
    assert chosen[0] == B
    assert A not in chosen
    assert choose_intermediaries({A: 0.1}, A, None, lambda: 0.5) == ()


def test_patience_grows_with_the_round_trip_and_is_bounded() -> None:
    assert answer_timeout(0.75, 0.2) == pytest.approx(1.55)
    assert answer_timeout(0.75, 1e9) < 5.0
    assert dial_timeout(0.75, {}) == 1.5
    assert dial_timeout(0.75, {A: 0.2, B: 1e9}) < 8.0


STRANGER = PeerId("c")
SETTINGS = RegistrySettings()


def heard(**times: float) -> dict[PeerId, MemberHealth]:
    return {PeerId(n): initial_health(heard_at=t, now=t, lease=100.0) for n, t in times.items()}


def turns(*linked: PeerId) -> ProbeSchedule:
    some = ProbeSchedule(SETTINGS, lambda: 0.5)
    for node in linked:
        some.add_peer(node)
    return some


def test_the_peer_that_was_silent_longest_is_next_once_it_was_silent_long_enough() -> None:
    assert turns(A, B).next_probe(heard(a=5.0, b=4.0)) == (B, 4.0 + 1.5 * SETTINGS.probe)


def test_strangers_disconnected_peers_and_busy_ones_have_no_turn() -> None:
    some = turns(A, STRANGER)
    assert some.next_probe(heard(a=1.0, b=0.0), {A: 0.0}) is None
    some.remove_peer(A)
    assert some.next_probe(heard(a=1.0, b=0.0)) is None


def test_a_turn_that_was_taken_counts_like_a_sign_of_life_and_the_next_one_waits() -> None:
    some = turns(A, B)
    some.note_probed(B, 10.0)
    node, due_at = some.next_probe(heard(a=5.0, b=4.0)) or (STRANGER, 0.0)
    assert node == A
    assert due_at == 10.0 + SETTINGS.probe
