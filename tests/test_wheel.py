"""What users install: the wheel, and the versions of Python that it is promised for."""

import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from scripts import pythons

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of the files in the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    # To compile takes a minute; `make pythons` checks the compiled modules.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HATCH_BUILD_NO_HOOKS", "1")
        (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_package_in_the_wheel_says_that_it_is_typed(names: set[str]) -> None:
    assert names >= {f"{package}/py.typed" for package in ("node", "registry", "router")}


def test_the_wheel_holds_every_module_and_nothing_but_the_packages(names: set[str]) -> None:
    modules = {
        str(path.relative_to(ROOT))
        for package in ("node", "registry", "router")
        for path in (ROOT / package).rglob("*.py")
    }
    assert modules <= names
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "node",
        "registry",
        "router",
    }


def test_the_wheel_holds_the_console_and_the_licences_of_what_it_loads(names: set[str]) -> None:
    static = ROOT / "node/faces/console/static"
    files = {str(path.relative_to(ROOT)) for path in static.rglob("*") if path.is_file()}
    assert any(name.endswith("uplot/LICENSE") for name in files)
    assert files <= names


def test_one_range_of_pythons_is_promised_everywhere() -> None:
    promised = pythons.promised()
    first, last = promised[0], promised[-1]
    after = f"3.{int(last.removeprefix('3.')) + 1}"
    assert promised == [f"3.{n}" for n in range(11, int(after.removeprefix("3.")))]
    assert PROJECT["requires-python"] == f">={first},<{after}"
    bounds = [tuple(map(int, version.split("."))) for version in (first, last)]
    preflight = (ROOT / "scripts/preflight.sh").read_text()
    assert f"not {bounds[0]} <= sys.version_info[:2] <= {bounds[1]}" in preflight
    assert f"Python {first} to {last}" in (ROOT / "README.md").read_text()


def test_an_interpreter_that_is_not_there_is_not_found() -> None:
    assert pythons.look_for("3.999") is None


def test_the_python_that_runs_these_tests_is_promised() -> None:
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in pythons.promised()
