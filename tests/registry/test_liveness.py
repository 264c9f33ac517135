"""Evidence and silence: the table is total, life clears doubt, and time alone ends a lease."""

from itertools import product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.liveness import (
    LIFE,
    REASONS,
    TABLE,
    UNPROBED,
    Contact,
    Evidence,
    Presence,
    Pulse,
    first_pulse,
    presence,
)
from registry.records import Standing

LEASE, SUSPICION = 15.0, 6.0
EVERY_CASE = list(product(Contact, Evidence))


def alive(heard: float = 0.0) -> Pulse:
    return first_pulse(heard=heard, now=heard, lease=LEASE)


def at(pulse: Pulse, now: float) -> Pulse:
    return pulse.at(now, lease=LEASE, suspicion=SUSPICION)


def due(pulse: Pulse) -> float:
    return pulse.due(lease=LEASE, suspicion=SUSPICION)


@pytest.mark.parametrize(("contact", "evidence"), EVERY_CASE)
def test_every_evidence_in_every_state_leads_to_a_state(
    contact: Contact, evidence: Evidence
) -> None:
    pulse = Pulse(contact, heard=1.0, since=1.0, why=Evidence.WORD)
    after = pulse.after(evidence, 2.0)
    expected = TABLE[contact].get(evidence, contact)
    assert after.contact is expected
    assert after.heard == (2.0 if evidence in LIFE else 1.0)
    assert (after.since, after.why) == (
        (1.0, Evidence.WORD) if expected is contact else (2.0, evidence)
    )


@pytest.mark.parametrize("contact", Contact)
def test_the_table_has_a_row_for_every_state(contact: Contact) -> None:
    assert contact in TABLE


@pytest.mark.parametrize(("contact", "evidence"), list(product(Contact, sorted(LIFE))))
def test_any_sign_of_life_makes_a_node_alive(contact: Contact, evidence: Evidence) -> None:
    assert (
        Pulse(contact, heard=0.0, since=0.0, why=Evidence.SILENCE).after(evidence, 1.0).contact
        is Contact.ALIVE
    )


@pytest.mark.parametrize(
    "evidence", [Evidence.PARTED, Evidence.FAILED, Evidence.MISSED, Evidence.UNREACHED]
)
def test_one_failure_only_makes_us_doubt(evidence: Evidence) -> None:
    assert alive().after(evidence, 1.0).contact is Contact.SUSPECT


def test_doubt_that_is_not_cleared_in_time_is_loss_and_says_why() -> None:
    doubted = alive().after(Evidence.FAILED, 1.0).after(Evidence.UNREACHED, 1.5)
    assert at(doubted, 1.0 + SUSPICION - 0.01) is doubted
    lost = at(doubted, 1.0 + SUSPICION)
    assert (lost.contact, lost.why) == (Contact.LOST, Evidence.DOUBT)


def test_a_doubt_that_no_probe_confirmed_lasts_longer_but_not_for_ever() -> None:
    doubted = Pulse(Contact.ALIVE, heard=0.9, since=0.0, why=Evidence.WORD)
    doubted = doubted.after(Evidence.FAILED, 1.0)
    assert doubted.due(lease=100.0, suspicion=6.0) == 1.0 + UNPROBED * 6.0


def test_a_new_doubt_is_not_confirmed_by_the_probes_of_an_old_one() -> None:
    old = alive().after(Evidence.UNREACHED, 1.0)
    assert old.unreached
    assert not old.after(Evidence.WORD, 2.0).after(Evidence.PARTED, 3.0).unreached


def test_what_nobody_could_say_while_we_stood_still_is_no_silence() -> None:
    pulse = alive(heard=0.0)
    woken = LEASE + 100.0
    assert pulse.at(woken, lease=LEASE, suspicion=SUSPICION, awake=woken) is pulse
    assert pulse.due(lease=LEASE, suspicion=SUSPICION, awake=woken) == woken + LEASE


def test_every_evidence_has_its_reason_in_words() -> None:
    assert set(REASONS) == set(Evidence)


def test_a_second_failure_does_not_prolong_the_doubt() -> None:
    doubted = alive().after(Evidence.FAILED, 1.0)
    assert due(doubted.after(Evidence.FAILED, 5.0)) == due(doubted)


def test_a_lease_ends_on_the_receivers_clock_and_not_before() -> None:
    assert at(alive(heard=100.0), 100.0 + LEASE - 0.01).contact is Contact.ALIVE
    lost = at(alive(heard=100.0), 100.0 + LEASE)
    assert (lost.contact, lost.why) == (Contact.LOST, Evidence.SILENCE)


def test_the_lost_stay_lost_however_much_time_passes() -> None:
    lost = at(alive(), LEASE)
    assert due(lost) == inf
    assert at(lost, 1e9) is lost


@given(st.floats(0, 1e6), st.lists(st.tuples(st.sampled_from(Evidence), st.floats(0, 20))))
def test_nothing_changes_before_it_is_due_and_something_does_when_it_is(
    start: float, story: list[tuple[Evidence, float]]
) -> None:
    pulse, now = alive(heard=start), start
    for evidence, pause in story:
        if due(pulse) < inf:
            assert at(pulse, due(pulse)).contact is not pulse.contact
        now += pause
        if now < due(pulse):
            assert at(pulse, now) is pulse
        pulse = at(pulse, now).after(evidence, now)
        assert pulse.heard <= now
        assert pulse.since <= now


@pytest.mark.parametrize(("age", "contact"), [(0.0, Contact.ALIVE), (LEASE, Contact.LOST)])
def test_a_node_known_by_hearsay_is_alive_as_long_as_what_was_heard_is_fresh(
    age: float, contact: Contact
) -> None:
    pulse = first_pulse(heard=1_000.0 - age, now=1_000.0, lease=LEASE)
    assert pulse.contact is contact
    assert due(pulse) == (inf if contact is Contact.LOST else 1_000.0 - age + LEASE)


@pytest.mark.parametrize(
    ("standing", "contact", "seen"),
    [
        (Standing.SERVING, Contact.ALIVE, Presence.ALIVE),
        (Standing.SERVING, Contact.SUSPECT, Presence.SUSPECT),
        (Standing.SERVING, Contact.LOST, Presence.LOST),
        (Standing.DRAINING, Contact.ALIVE, Presence.DRAINING),
        (Standing.DRAINING, Contact.SUSPECT, Presence.DRAINING),
        (Standing.DRAINING, Contact.LOST, Presence.LOST),
        (Standing.LEFT, Contact.ALIVE, Presence.LEFT),
        (Standing.LEFT, Contact.SUSPECT, Presence.LEFT),
        (Standing.LEFT, Contact.LOST, Presence.LEFT),
    ],
)
def test_a_nodes_own_word_is_tempered_by_whether_we_hear_it(
    standing: Standing, contact: Contact, seen: Presence
) -> None:
    assert presence(standing, contact) is seen
