"""Laws of cutting a text before stop strings."""

from hypothesis import given
from hypothesis import strategies as st

from router.translate.text import Stops

LETTERS = st.text(alphabet="ab", max_size=12)


def pieces(stops: Stops, text: list[str]) -> str:
    return "".join(map(stops.take, text)) + stops.rest()


@given(st.lists(LETTERS, max_size=6), st.lists(LETTERS.filter(bool), max_size=3))
def test_a_text_ends_before_the_first_stop_string_however_it_is_split(
    text: list[str], stops: list[str]
) -> None:
    whole = "".join(text)
    found = [at for stop in stops if (at := whole.find(stop)) >= 0]
    cut = Stops(stops)
    written = pieces(cut, text)
    assert bool(cut.hit) == bool(found)
    if not found:
        assert written == whole
        return
    # Of two overlapping stop strings, the one that is complete first counts.
    assert whole.startswith(written)
    assert not any(stop in written for stop in stops)
    assert whole.startswith(cut.hit, len(written))
    assert cut.hit in stops


def test_only_characters_that_may_begin_a_stop_string_are_held_back() -> None:
    stops = Stops(["STOP"])
    assert stops.take("go on ST") == "go on "
    assert stops.take("ILL") == "STILL"
    assert stops.take(" S") == " "
    assert stops.take("TOP and more") == ""
    assert (stops.take("never seen"), stops.rest(), stops.hit) == ("", "", "STOP")


def test_held_back_characters_are_returned_when_the_text_ends() -> None:
    stops = Stops(["STOP"])
    assert stops.take("the STO") == "the "
    assert (stops.rest(), stops.rest()) == ("STO", "")
