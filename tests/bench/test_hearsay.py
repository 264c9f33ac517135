"""Knowing how busy the others are is worth it, and the shortest queue of all is still the best."""

from bench.hearsay import Shape, waits


def test_who_hears_loads_waits_less_than_who_knows_its_own_requests_only() -> None:
    shape = Shape(nodes=8, slots=2, mean=2.0)
    oracle, told, own = (
        waits(shape, knowledge, seconds=200, seeds=1) for knowledge in ("oracle", "told", "own")
    )
    assert oracle < told
    assert told[0] < 0.8 * own[0]
    assert told[1] < own[1]
