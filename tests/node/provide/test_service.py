"""What a provider keeps in its folder, and what it tells the node. That it runs is shown by tests/swarm/test_batches.py."""

import os
import signal
import stat
import subprocess
import sys

import pytest

from node.cli import provide
from node.config.addresses import HostPort
from node.provide.batch import BatchProvider
from node.provide.files import KEEP
from node.provide.plan import ProviderPlan
from node.provide.service import _key, registrations
from registry.records import ModelType
from tests.node.cli.stand_in import Said, StandIn


def test_the_key_is_made_once_and_is_private(tmp_path):
    path = tmp_path / "key"
    key = _key(path)
    assert len(key) >= 32
    assert _key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_node_is_told_where_the_key_is_and_not_what_it_is(tmp_path):
    plan = ProviderPlan("batch", tmp_path, HostPort("127.0.0.1", 0), "p", "batch", 4)
    provider = BatchProvider(plan, "http://127.0.0.1:2")
    batch, reward, synthetic = registrations(plan, provider, "http://127.0.0.1:1")
    provider.close()
    assert batch["headers"] == {"authorization": f"Bearer @{tmp_path.resolve()}/key"}
    assert batch["type"] == ModelType.BATCH
    # All types share one model, so that files are found whichever of them made them.
    assert (reward["model"], synthetic["model"]) == (batch["model"],) * 2


def test_the_default_bound_of_the_command_is_the_engines() -> None:
    assert provide.KEEP * 1000**3 == KEEP


@pytest.mark.usefixtures("hangup_ends")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_a_provider_withdraws_itself_at_its_end(tmp_path, how) -> None:
    paths = {
        f"POST /api/v0/ai/model/{verb}": Said({"code": 0}) for verb in ("register", "unregister")
    }
    with StandIn(paths) as node:
        process = subprocess.Popen(
            [sys.executable, "-m", "node", "provide", "batch", "--node", node.url, "--data", str(tmp_path)],
            stdout=subprocess.PIPE,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready batch=")
        process.send_signal(how)
        assert process.wait(10) == 0
        process.stdout.close()
    assert node.heard[-1].path.endswith("/unregister")


def test_a_provider_says_in_one_line_that_its_node_refuses_it_or_does_not_run(tmp_path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def ends(url: str) -> str:
        command = ("-m", "node", "provide", "batch", "--node", url, "--data", str(tmp_path))
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=30,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    path = "POST /api/v0/ai/model/register"
    with StandIn({path: Said({"message": "not you", "code": 1010}, status=403)}) as node:
        url = node.url
        assert ends(url).startswith("modelvine: not you (HTTP 403")
    assert ends(url).startswith("modelvine: no node answers at")
