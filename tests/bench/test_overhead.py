"""Laws of measuring what the router itself costs."""

from bench import overhead
from router.openai import body


def test_every_part_does_what_it_is_measured_for() -> None:
    for part in overhead.PARTS.values():
        part(3)
    assert body.read(overhead.a_body(2_000), "application/json").model == "llama"
    assert abs(len(overhead.a_body(2_000)) - 2_000) < 250
