"""Laws of the measurement of the router's own overhead."""

from bench import overhead
from router.openai import body


def test_every_measured_part_runs_and_bodies_have_their_size() -> None:
    for part in overhead.PARTS.values():
        part(3)
    assert body.read(overhead.a_body(2_000), "application/json").model == "llama"
    assert abs(len(overhead.a_body(2_000)) - 2_000) < 250
