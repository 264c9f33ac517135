"""Who speaks no gRPC needs none of it: a node is built, and every other module loads, where `grpc` cannot be imported."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

WITHOUT = """
import importlib, pkgutil, sys
sys.modules["grpc"] = None  # whoever imports it now gets an ImportError
import node, registry, router
for package in (node, registry, router):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        needs = module.name.startswith(("router.rpc.", "node.faces.grpc.")) or "_grpc" in module.name
        if not needs and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


def without(program: str) -> str:
    """Run a program where there is no grpc; return what it says."""
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_everything_but_what_speaks_it_loads_without_grpc() -> None:
    assert without("print('all of it')") == "all of it\n"


def test_the_dialects_of_a_node_are_there_without_grpc() -> None:
    said = without("""
from router import dialects
spoken = dialects.Spoken(None)
print(sorted(set(spoken) - {name for name in spoken if name.endswith("_grpc")}))
""")
    assert "openai_http" in said


def test_who_registers_a_worker_that_speaks_it_is_told_what_to_install() -> None:
    said = without("""
from node.faces.errors import WrongParameter
from node.faces.v0.registration import read_worker
from router.ssrf_guard import Premises
try:
    read_worker("p", {"model": "m", "api": "grpc+localai://127.0.0.1:5", "type": 0}, Premises())
except WrongParameter as error:
    print(error)
""")
    assert "pip install 'modelvine[grpc]'" in said
