"""Vendoring of packages with npm: fetch them, check their hashes, and put some of their files, with licences, into a folder.

usage: .venv/bin/python scripts/vendor.py PINS FOLDER NPM-COMMAND…

PINS is a JSON file with the version, npm's integrity, and the SHA-256 of each wanted file of each package. The console's page
loads the files in node/faces/console/static/vendor/packages.json.
"""

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).resolve().parent.parent / "node/faces/console/static/vendor"
PINS = VENDOR / "packages.json"
MAX_FILE_BYTES = 2 * 1024 * 1024


def faults(pins: Mapping[str, Any], folder: Path = VENDOR) -> list[str]:
    """Return the files of a folder that differ from their pins, are missing, or are not pinned."""
    pinned = {
        folder / package / Path(file).name: digest
        for package, pin in pins.items()
        for file, digest in pin["files"].items()
    }
    present = {path for path in folder.rglob("*") if path.is_file() and path.name != PINS.name}
    wrong = [path for path in present & pinned.keys() if sha256(path.read_bytes()) != pinned[path]]
    return sorted(str(path.relative_to(folder)) for path in {*wrong, *(present ^ pinned.keys())})


def sha256(content: bytes) -> str:
    """Return a file's digest in the form of the pins."""
    return hashlib.sha256(content).hexdigest()


def checked(archive: bytes, integrity: str) -> bytes:
    """Return a package unchanged; raise `ValueError` if it is not the pinned one."""
    kind, _, digest = integrity.partition("-")
    if kind != "sha512" or hashlib.sha512(archive).digest() != base64.b64decode(digest):
        raise ValueError(f"the package has not the hash {integrity}")
    return archive


def unpack(archive: Path, folder: Path, files: Mapping[str, str]) -> None:
    """Put the files of one package into its folder; raise `ValueError` if one differs from its pin."""
    with tarfile.open(archive) as packed:
        for file, digest in files.items():
            member = packed.extractfile(f"package/{file}")
            content = member.read(MAX_FILE_BYTES) if member else b""
            if sha256(content) != digest:
                raise ValueError(f"{file} of {folder.name} has the SHA-256 {sha256(content)}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / Path(file).name).write_bytes(content)


def main(pinned: str, folder: str, *npm: str) -> int:
    """Fetch all packages; return 1 if the folder differs from the pins afterwards."""
    pins = json.loads(Path(pinned).read_text())
    with tempfile.TemporaryDirectory() as packed:
        for package, pin in pins.items():
            target = f"{package}@{pin['version']}"
            pack = [*npm, "pack", "--silent", "--pack-destination", packed, target]
            result = subprocess.run(pack, check=True, capture_output=True, text=True, cwd=packed)
            archive = Path(packed) / result.stdout.split()[-1]
            checked(archive.read_bytes(), pin["integrity"])
            unpack(archive, Path(folder) / package, pin["files"])
            print(f"{target}: {len(pin['files'])} files")
    if wrong := faults(pins, Path(folder)):
        print("not pinned, or not as pinned:", *wrong)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
