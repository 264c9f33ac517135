"""Laws of the usual time of answers."""

from hypothesis import given
from hypothesis import strategies as st

from router.hedge import FEWEST, MAX_MODELS, SAMPLES, LatencyQuantiles
from router.requests import Kind


def told(
    usual: LatencyQuantiles, *seconds: float, model: str = "m", kind: Kind = Kind.CHAT
) -> float | None:
    for one in seconds:
        usual.took(model, kind, one)
    return usual.slow(model, kind)


def test_few_answers_give_no_usual_time() -> None:
    usual = LatencyQuantiles()
    assert told(usual, *[1.0] * (FEWEST - 1)) is None
    assert told(usual, 1.0) == 1.0


def test_the_usual_time_is_the_95th_percentile() -> None:
    assert told(LatencyQuantiles(), *map(float, range(100))) == 95.0


def test_each_model_and_kind_has_its_own_usual_time() -> None:
    usual = LatencyQuantiles()
    told(usual, *[9.0] * SAMPLES)
    assert told(usual, *[1.0] * SAMPLES, kind=Kind.EMBEDDING) == 1.0
    assert told(usual, model="another") is None


def test_the_number_of_remembered_models_is_bounded() -> None:
    usual = LatencyQuantiles()
    for n in range(MAX_MODELS + 5):
        told(usual, 1.0, model=str(n))
    assert len(usual._took) == MAX_MODELS


@given(st.lists(st.floats(0, 100), min_size=FEWEST, max_size=3 * SAMPLES))
def test_only_the_latest_answers_count(seconds: list[float]) -> None:
    last = sorted(seconds[-SAMPLES:])
    assert told(LatencyQuantiles(), *seconds) == last[len(last) * 19 // 20]
