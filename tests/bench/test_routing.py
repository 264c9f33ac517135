"""Every policy finds a worker, and the default is not far from knowing everything."""

import pytest

from bench.routing import Cluster, compare, fresh, percentile
from router import policies


def p99(scene: str, policy: str) -> float:
    return percentile(Cluster(scene, policy=policy, load=0.7, seed=3).run(3000), 0.99)


@pytest.mark.parametrize("name", policies.NAMES)
def test_every_policy_answers_every_request(name: str) -> None:
    assert len(Cluster("bursts", policy=name, load=0.5, seed=1).run(1000)) == 900


def test_two_choices_on_what_nodes_know_are_not_far_from_the_shortest_queue_of_all() -> None:
    assert p99("unequal", "p2c") < 1.25 * p99("unequal", "oracle")


def test_the_same_seed_gives_the_same_figures() -> None:
    runs = [Cluster("alike", policy="prefix", load=0.8, seed=5).run(500) for _ in range(2)]
    assert runs[0] == runs[1]


def test_all_are_compared() -> None:
    assert set(compare("alike", load=0.5, requests=200, seed=1)) == {"oracle", *policies.NAMES}


def test_who_asks_while_a_machine_is_new_waits_less_when_it_begins_gently() -> None:
    gentle, at_once = (percentile(s, 0.99) for s in fresh("p2c", load=0.8, seeds=[1]))
    assert gentle < 0.8 * at_once
