"""Deadlines of members: looking at them in order finds what looking at every member would find."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from registry.members.deadlines import MemberDeadlines
from registry.members.liveness import Evidence, MemberHealth, Status
from registry.records import PeerId

NODES = [PeerId(name) for name in "abcdef"]
times = st.floats(0, 100, width=16)
pulses = st.builds(
    MemberHealth,
    contact=st.sampled_from(Status),
    heard=times,
    since=times,
    why=st.sampled_from(Evidence),
    rounds=st.integers(0, 3),
    unreached=times,
    accused=times,
)
puts = st.tuples(st.sampled_from(NODES), st.one_of(st.none(), pulses))
passings = st.fixed_dictionaries({"lease": times, "suspicion": times, "awake": times})


def take(
    some: MemberDeadlines,
    plain: dict[PeerId, MemberHealth],
    node: PeerId,
    health: MemberHealth | None,
) -> None:
    if health is not None:
        some.put(node, health)
        plain[node] = health
    elif node in plain:
        some.remove(node)
        del plain[node]


@given(st.lists(st.one_of(puts, st.tuples(times, passings))))
def test_passing_time_over_all_members_equals_passing_it_over_each_pulse(
    steps: list[tuple[PeerId, MemberHealth | None] | tuple[float, dict[str, float]]],
) -> None:
    some, plain = MemberDeadlines(), dict[PeerId, MemberHealth]()
    for step in steps:
        match step:
            case (str() as node, MemberHealth() | None as health):
                take(some, plain, PeerId(node), health)
            case (float() as now, dict() as given_times):
                after = {node: health.at_time(now, **given_times) for node, health in plain.items()}
                due = min((p.next_change_at(**given_times) for p in plain.values()), default=inf)
                assert some.next_change_at(**given_times) == due
                changed = some.pass_time(now, **given_times)
                assert sorted(changed) == sorted(n for n in plain if after[n] is not plain[n])
                plain = after
        assert dict(some) == plain
        lost = [node for node, health in plain.items() if health.contact is Status.LOST]
        assert some.living_count == len(plain) - len(lost)
        assert sorted(some.lost_nodes) == sorted(lost)
        assert [plain[n].heard for n in some.lost_nodes] == sorted(plain[n].heard for n in lost)
