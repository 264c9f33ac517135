"""Does the soak run, and find nothing wrong in a minute of it?"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.swarm.nodes import python

pytestmark = [pytest.mark.swarm, pytest.mark.alone, pytest.mark.timeout(300)]

HERE = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    shutil.which("cc") is None, reason="THE SOAK DOES NOT RUN: it needs a C compiler (cc)"
)
def test_a_short_soak_loses_no_request_and_leaks_nothing() -> None:
    command = python("-m", "bench.soak", "--requests", "2000", "--rate", "200")
    run = subprocess.run(
        command, cwd=HERE, env=os.environ, capture_output=True, text=True, timeout=280, check=False
    )
    print(run.stdout, run.stderr)
    assert run.returncode == 0
    assert "| failed | 0 |" in run.stdout
    assert "| registrations | 200 |" in run.stdout
