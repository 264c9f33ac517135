"""Every policy finds a worker, and the default is close to an oracle that knows everything."""

import pytest

from bench.routing import (
    LIAR,
    SCENES,
    Cluster,
    as_table,
    as_table_of_agents,
    compare,
    fresh,
    percentile,
)
from router import policies


def p99(scene: str, policy: str) -> float:
    return percentile(Cluster(scene, policy=policy, load=0.7, seed=3).run(3000), 0.99)


@pytest.mark.parametrize("name", policies.NAMES)
def test_every_policy_answers_every_request(name: str) -> None:
    assert len(Cluster("bursts", policy=name, load=0.5, seed=1).run(1000)) == 900


@pytest.mark.parametrize(
    "scene", [scene for scene in SCENES if scene not in ("speeds, bursts", "agents, speeds")]
)
def test_the_default_policy_is_close_to_the_oracle(scene: str) -> None:
    assert p99(scene, "p2c") < 1.25 * p99(scene, "oracle")


def test_the_default_policy_is_close_to_the_oracle_with_unequal_speeds_and_bursts() -> None:
    def run(policy: str) -> float:
        cluster = Cluster("speeds, bursts", policy=policy, load=0.7, seed=3)
        return percentile(cluster.run(6000), 0.99)

    assert run("p2c") < 1.5 * run("oracle")


@pytest.mark.parametrize("scene", [name for name, shape in SCENES.items() if shape.agents])
def test_turns_of_a_conversation_find_their_cache_when_eight_nodes_choose(scene: str) -> None:
    def found(entries: int) -> float:
        cluster = Cluster(scene, policy="p2c", load=0.85, seed=1, entries=entries)
        cluster.run(4000)
        return cluster.found / cluster.turns

    assert found(8) > 0.85 * found(1) > 0.6


def test_the_table_of_agents_has_four_rows() -> None:
    assert as_table_of_agents(load=0.5, requests=300, seed=1).count("\n| agents | ") == 4


@pytest.mark.parametrize("entries", [1, 20])
def test_the_default_policy_is_close_to_the_oracle_with_one_or_twenty_choosing_nodes(
    entries: int,
) -> None:
    def run(policy: str) -> float:
        cluster = Cluster("speeds", policy=policy, load=0.7, seed=3, entries=entries)
        return percentile(cluster.run(3000), 0.99)

    assert run("p2c") < 1.5 * run("oracle")


def test_the_same_seed_gives_the_same_figures() -> None:
    runs = [Cluster("half share", policy="session", load=0.8, seed=5).run(500) for _ in range(2)]
    assert runs[0] == runs[1]


def test_every_policy_and_the_oracle_are_compared() -> None:
    compared = {"alike": compare("alike", load=0.5, requests=200, seed=1, entries=2)}
    assert set(compared["alike"]) == {"oracle", *policies.NAMES}
    assert as_table(compared).count("\n| alike |") == 1


def test_slow_start_of_a_new_machine_shortens_waits() -> None:
    gentle, at_once = (percentile(s, 0.99) for s in fresh("p2c", load=0.8, seeds=[1, 2]))
    assert gentle < 0.9 * at_once


@pytest.mark.parametrize("entries", [1, 5])
def test_a_slow_machine_that_reports_to_be_idle_and_fast_gets_hardly_any_requests(
    entries: int,
) -> None:
    cluster = Cluster("alike", policy="p2c", load=0.5, seed=3, entries=entries, liar=True)
    cluster.run(3000)
    # Most are those of slow start; a ninth would be an equal share.
    assert cluster.chosen[LIAR] < 0.02 * cluster.chosen.total()
