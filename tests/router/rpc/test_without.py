"""gRPC is optional: a node can be built, and every module that does not use gRPC loads, without `grpc`."""

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
    """Run a program without grpc and return its output."""
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_module_that_does_not_use_grpc_loads_without_it() -> None:
    assert without("print('all of it')") == "all of it\n"


def test_the_other_dialects_of_a_node_are_available_without_grpc() -> None:
    output = without("""
from router import dialects
spoken = dialects.LazyDialects(None)
print(sorted(set(spoken) - {name for name in spoken if name.endswith("_grpc")}))
""")
    assert "openai_http" in output


def test_registering_a_grpc_worker_names_the_package_to_install() -> None:
    output = without("""
from node.faces.errors import WrongParameter
from node.faces.v0.registration import read_worker
from router.ssrf_guard import SsrfGuard
try:
    read_worker("p", {"model": "m", "api": "grpc+localai://127.0.0.1:5", "type": 0}, SsrfGuard())
except WrongParameter as error:
    print(error)
""")
    assert "make extras, or pip install 'modelvine[grpc]'" in output
