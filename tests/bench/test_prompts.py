"""Counting cached tokens of a batch whose lines share prefixes."""

from bench.prompts import Found, sum_up


def test_every_line_but_the_first_with_a_prefix_could_find_it_cached() -> None:
    def answer(tokens: int, cached: int) -> dict[str, object]:
        details = {"cached_tokens": cached}
        return {"usage": {"prompt_tokens": tokens, "prompt_tokens_details": details}}

    systems = ["a", "b", "a", "a"]
    answers = [answer(12, 0), answer(25, 0), answer(13, 10), answer(13, 0)]
    assert sum_up(systems, answers, {"a": 10, "b": 20}) == Found(63, 10, 20)
