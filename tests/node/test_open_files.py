"""The limit on open files, in processes of their own: it cannot be raised again once it was lowered."""

import subprocess
import sys

import pytest

from node.config.settings import Settings
from node.config.web import WebSettings
from node.listeners import fitted

RAISED = """
import resource
from node.listeners import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def raised(*, soft: int, hard: int) -> list[int]:
    program = RAISED.format(soft=soft, hard=hard)
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return [int(number) for number in told.stdout.split()]


def test_the_soft_limit_is_raised_to_the_hard_one():
    assert raised(soft=100, hard=500) == [500, 500, 500]
    assert raised(soft=500, hard=500) == [500, 500, 500]


def test_where_all_connections_fit_nothing_is_changed_or_said(caplog):
    settings = Settings()
    assert fitted(settings, 1_048_576) is settings
    assert not caplog.records


def test_connections_that_do_not_fit_are_fewer_and_the_operator_is_told(caplog):
    small = fitted(Settings(), 1_024)
    assert small.web.connections == 192
    assert small.web == Settings().web.model_copy(update={"connections": 192})
    assert (small.node, small.router) == (Settings().node, Settings().router)
    assert "1024 open files" in caplog.text
    assert "LimitNOFILE" in caplog.text


@pytest.mark.parametrize(
    ("settings", "level"),
    [(Settings(), "DEBUG"), (Settings(web=WebSettings(connections=16_384)), "WARNING")],
)
def test_a_number_that_nobody_set_may_be_lowered_without_a_warning(caplog, settings, level):
    with caplog.at_level("DEBUG"):
        assert fitted(settings, 20_000).web.connections == 4_936
    assert [record.levelname for record in caplog.records] == [level]


def test_a_limit_that_is_no_use_leaves_one_place():
    assert fitted(Settings(), 16).web.connections == 1
