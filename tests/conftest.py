"""Settings of all tests: how many examples properties try, and which tests are `slow`.

Properties try few examples at the runner and more in CI, the same ones every time.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Reproducible: a change that breaks a law fails here every time, and no run fails for another reason. SEED asks for others.
_COMMON = settings(
    deadline=None,
    derandomize=not os.environ.get("SEED"),
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("runner", _COMMON, max_examples=30)
settings.register_profile("ci", _COMMON, max_examples=100)
settings.load_profile("ci" if os.environ.get("CI") else "runner")

ROOT = Path(__file__).parents[1]
SLOW = {
    "tests/bench/": "benches, each in small",
    "tests/node/cli/test_up.py": "whole processes",
    "tests/node/connections/test_floods.py": "floods",
    "tests/node/demo/": "a real model",
    "tests/node/cli/test_completion.py": "shells, which start slowly",
    "tests/node/faces/grpc/test_chat_only_workers.py": "each gRPC call through whole nodes, for each kind of worker",
    "tests/node/faces/grpc/test_localai_over_localai.py": "gRPC through whole nodes to gRPC",
    "tests/node/faces/test_errors_of_workers.py": "every failure of every worker's protocol, through whole nodes",
    "tests/node/faces/test_errors_over_a_hop.py": "waits for workers who are silent, through two nodes",
    "tests/node/faces/test_slow_callers.py": "callers who are slow for seconds",
    "tests/node/faces/test_smuggling.py": "a corpus of requests, each over a connection of its own",
    "tests/node/faces/test_vectors_provided.py": "the same suite over each engine, PostgreSQL among them",
    "tests/node/peers/test_bootstrap_contacts.py": "whole processes",
    "tests/node/test_full_disk.py": "whole processes on a full disk",
    "tests/node/test_stopping.py": "whole processes",
    "tests/registry/mesh/libp2p/": "real libp2p hosts, each with a thread; the contract of all meshes is not slow",
    "tests/registry/mesh/test_mdns.py": "real multicast, which waits for answers",
    "tests/router/dialects/localai_grpc/test_generated.py": "servers of two ages, each a process",
    "tests/router/test_large_bodies.py": "bodies of many megabytes",
    "tests/router/http/test_bombs.py": "bodies that unpack to a hundred times their size",
    "tests/router/rpc/test_without.py": "processes without an optional library",
    "tests/test_dropped_in.py": "copies of the tree, in which the suite runs",
    "tests/test_wheel.py": "builds the wheel",
}
"""Files and folders whose tests are `slow`, each with the reason."""

BESIDE = "asyncio"
"""The event loop that nodes do not run on: tests that run on both loops are slow on this one."""


COLLECT_AT = 50_000, 20, 20
"""Thresholds of the garbage collector: by default it runs after 700 new objects, which took a sixth of each test's time."""


@pytest.fixture
def hangup_ends() -> Iterator[None]:
    """Undo what nohup does to SIGHUP, here and in the processes that a test starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def pytest_configure() -> None:
    """Set the thresholds before tests are collected: thousands of objects are made, and all stay."""
    gc.set_threshold(*COLLECT_AT)


def pytest_collection_finish() -> None:
    """Exclude imported modules and collected tests from every later garbage collection."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests."""
    for item in items:
        path = item.path.relative_to(ROOT).as_posix()
        loop = item.name.partition("[")[2].partition("-")[0].rstrip("]")
        if path.startswith(tuple(SLOW)) or loop == BESIDE:
            item.add_marker(pytest.mark.slow)
