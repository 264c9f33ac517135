"""Reporting of figures: a missed goal is marked."""

from bench.serving.scene import Row, table


def test_a_missed_goal_is_marked_and_a_kept_one_is_not() -> None:
    text = table([Row("kept", "≥ 1", "2", True), Row("missed", "≥ 3", "2", False)])
    assert "| kept | ≥ 1 | 2 |  |" in text
    assert "| missed | ≥ 3 | 2 | **missed** |" in text
