"""How figures are told: a miss is named."""

from bench.serving.scene import Row, table


def test_a_goal_that_was_missed_is_called_so_and_one_that_was_kept_is_not() -> None:
    told = table([Row("kept", "≥ 1", "2", True), Row("missed", "≥ 3", "2", False)])
    assert "| kept | ≥ 1 | 2 |  |" in told
    assert "| missed | ≥ 3 | 2 | **missed** |" in told
