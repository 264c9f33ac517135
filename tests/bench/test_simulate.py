"""The simulator is deterministic, and its figures are right for small worlds whose outcome is known."""

from collections.abc import Iterator

import pytest

from bench.simulate import as_json, as_table, main, plan_of, run
from bench.simulation.overlay import NEVER, Overlay, Weather
from bench.simulation.population import begin, each_frame_verified_once, shared
from bench.simulation.scenarios import SCENARIOS, Figure, false_deaths
from bench.simulation.world import Plan
from registry import wire
from registry.catalog import Catalog
from registry.errors import InvalidSignature

QUICK = ("visible", "killed", "joiner")


@pytest.fixture(autouse=True)
def verified_once() -> Iterator[None]:
    with each_frame_verified_once():
        yield


def figures(name: str, **plan: object) -> dict[str, float]:
    made = Plan(**{"nodes": 12, "full": 12, **plan})
    return {figure.what: figure.value for figure in SCENARIOS[name](made)}


def test_the_same_seed_gives_the_same_table_and_another_seed_another() -> None:
    tables = [as_table(15, run(Plan(nodes=15, full=9, seed=seed), QUICK)) for seed in (1, 1, 2)]
    assert tables[0] == tables[1]
    assert tables[0] != tables[2]


def test_every_node_sees_a_registration_within_a_second() -> None:
    assert figures("visible")["until a node sees a registration, max"] < 1.0


def test_every_node_sees_a_whole_burst() -> None:
    assert figures("burst")["nodes that never saw it"] == 0


def test_nodes_without_a_full_replica_count_among_those_that_see() -> None:
    plan = Plan(nodes=20, full=6)
    figure = next(f for f in SCENARIOS["visible"](plan) if f.what.endswith("max"))
    assert figure.of == f"{5 * 19}"
    assert figure.value < 1.0


@pytest.mark.parametrize("name", ["killed", "vanished"])
def test_a_dead_node_leaves_every_live_view(name: str) -> None:
    values = figures(name)
    assert values["nodes that never noticed"] == 0
    assert values["until a node is out of the live view, max"] < 20.0


def test_a_killed_process_is_noticed_sooner_than_an_unplugged_machine() -> None:
    what = "until a node is out of the live view, p50"
    assert figures("killed")[what] < figures("vanished")[what]


def test_no_node_is_declared_dead_without_packet_loss() -> None:
    (figure,) = false_deaths(Plan(nodes=12, full=12), weather=Weather())
    assert figure.value == 0


def test_both_sides_of_a_split_agree_again_after_it() -> None:
    values = figures("split", nodes=10, full=10)
    assert values["from healing until all digests are equal"] < 20.0


def test_the_two_sides_of_a_split_differ_while_it_lasts() -> None:
    # Otherwise the recovery from it would prove nothing.
    world = begin(Plan(nodes=10, full=10))
    world.divide(lambda number: int(number < 4))
    member = world.members[0]
    world.timeline.at(
        1.0, lambda now: member.perform(member.replica.announce(now, services=()), now)
    )
    world.timeline.run(30.0)
    digests = [m.replica.catalog.digest for m in world.members]
    assert len(set(digests[:4])) == len(set(digests[4:])) == 1
    assert digests[0] != digests[9]
    assert all(
        world.members[0].replica.member_health()[world.peer(other)].contact.value == "lost"
        for other in range(4, 10)
    )


def test_a_joiner_learns_everything() -> None:
    values = figures("joiner")
    assert values["until it sees everything"] < 5.0
    assert values["until a node sees it, max"] < 20.0


def test_what_an_idle_node_sends_is_counted() -> None:
    values = figures("idle", nodes=8, full=8)
    parts = [value for what, value in values.items() if what.startswith("sent: ")]
    assert values["sent: heartbeats"] > 0
    assert values["sent: probes and comparisons"] > 0
    assert max(parts) == values["sent: everything"]


def test_a_frame_with_a_bad_signature_is_refused_each_time() -> None:
    world = begin(Plan(nodes=2, full=2))
    frame = bytearray(next(iter(world.members[0].replica.catalog.held.values())).frame)
    frame[40] ^= 1
    for _ in range(2):
        with pytest.raises(InvalidSignature):
            wire.decode(bytes(frame))


def test_shared_catalogs_equal_plain_ones() -> None:
    held = begin(Plan(nodes=5, full=5)).members[0].replica.catalog.held
    records = list(held.values())
    plain, one, other = Catalog(), shared({}), shared({})
    for signed in records:
        plain, one = plain.merge([signed]), one.merge([signed])
    for signed in reversed(records):
        other = other.merge([signed])
    assert one is other
    assert (one.digest, dict(one.held)) == (plain.digest, dict(plain.held))
    offered, alike = ({name: {*offers} for name, offers in c.offers.items()} for c in (one, plain))
    assert offered == alike


def test_a_frame_reaches_every_node_and_costs_one_copy_per_eager_neighbour() -> None:
    world = begin(Plan(nodes=40, full=1))
    spread = world.overlay.spread(7)
    assert NEVER not in spread.after
    eager = sum(map(len, world.overlay.eager))
    assert spread.copies == eager - 39


def test_a_lost_packet_arrives_late_and_a_dropped_message_never() -> None:
    world = begin(Plan(nodes=2, full=1, weather=Weather(loss=0.5)))
    trips = [world.overlay.trip(0, 1) for _ in range(200)]
    assert max(trips) < NEVER
    assert max(trips) > 0.2 > min(trips)
    world = begin(Plan(nodes=2, full=1, weather=Weather(drop=0.5)))
    assert {world.overlay.trip(0, 1) < NEVER for _ in range(200)} == {True, False}


def test_a_frame_does_not_cross_a_cut_but_gets_round_lossy_links() -> None:
    world = begin(Plan(nodes=40, full=1, weather=Weather(drop=0.2)))
    assert NEVER not in world.overlay.spread(0).after
    world.overlay.divide(lambda number: number % 2)
    after = world.overlay.spread(0).after
    assert all(reached_at == NEVER for reached_at in after[1::2])


def test_unlinking_removes_a_connection_at_both_ends() -> None:
    world = begin(Plan(nodes=6, full=1))
    overlay: Overlay = world.overlay
    other = next(iter(overlay.links[3]))
    overlay.unlink(3, other)
    assert other not in overlay.links[3]
    assert 3 not in overlay.links[other] | dict.fromkeys(overlay.eager[other])


def test_the_command_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--nodes", "6", "--scenario", "visible"])
    assert "| visible | until a node sees a registration, p50 |" in capsys.readouterr().out
    never = Figure("killed", "seen", float("inf"), "s")
    assert '"value": null' in as_json(6, [never])


def test_command_line_options_set_the_settings_of_the_registry() -> None:
    from bench.simulate import _parser

    plan = plan_of(_parser().parse_args(["--heartbeat", "7", "--degree", "5"]), 50)
    assert (plan.settings.heartbeat, plan.mesh.degree, plan.full) == (7.0, 5, 50)
