"""Gossiped load of other nodes shortens waits, and perfect knowledge shortens them further."""

from bench.hearsay import Shape, waits


def test_requests_wait_less_where_loads_are_gossiped_than_where_a_node_knows_only_its_own() -> None:
    shape = Shape(nodes=8, slots=2, mean=2.0)
    oracle, told, own = (
        waits(shape, knowledge, seconds=200, seeds=1) for knowledge in ("oracle", "told", "own")
    )
    assert oracle < told
    assert told[0] < 0.8 * own[0]
    assert told[1] < own[1]
