"""The limit on open files, tested in subprocesses: a lowered limit cannot be raised again."""

import subprocess
import sys

import pytest

from node.config.settings import Settings
from node.config.web import WebSettings
from node.listeners import fit_connections

RAISED = """
import resource
from node.listeners import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def raised(*, soft: int, hard: int) -> list[int]:
    program = RAISED.format(soft=soft, hard=hard)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return [int(number) for number in result.stdout.split()]


def test_the_soft_limit_is_raised_to_the_hard_one():
    assert raised(soft=100, hard=500) == [500, 500, 500]
    assert raised(soft=500, hard=500) == [500, 500, 500]


def test_settings_stay_and_nothing_is_logged_when_all_connections_fit(caplog):
    settings = Settings()
    assert fit_connections(settings, 1_048_576) is settings
    assert not caplog.records


def test_the_number_of_connections_is_lowered_to_what_fits_and_the_operator_is_told(caplog):
    small = fit_connections(Settings(), 1_024)
    assert small.web.connections == 192
    assert small.web == Settings().web.model_copy(update={"connections": 192})
    assert (small.node, small.router) == (Settings().node, Settings().router)
    assert "1024 open files" in caplog.text
    assert "LimitNOFILE" in caplog.text


@pytest.mark.parametrize(
    ("settings", "level"),
    [(Settings(), "DEBUG"), (Settings(web=WebSettings(connections=16_384)), "WARNING")],
)
def test_lowering_is_a_warning_only_if_the_number_of_connections_was_configured(
    caplog, settings, level
):
    with caplog.at_level("DEBUG"):
        assert fit_connections(settings, 20_000).web.connections == 4_936
    assert [record.levelname for record in caplog.records] == [level]


def test_a_limit_that_is_far_too_low_leaves_one_connection():
    assert fit_connections(Settings(), 16).web.connections == 1
