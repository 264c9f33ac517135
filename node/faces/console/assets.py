"""Assets of the console: the files that its page loads, read and compressed when the first of them is requested."""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "static"

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Content types of the files that are served; others in the folder, such as licences, are not."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, plain and compressed by gzip."""

    content: bytes
    packed: bytes
    content_type: str
    etag: str


@cache
def assets() -> Mapping[str, Asset]:
    """Return all files by their paths below the folder: requests are looked up here, and never on the disk."""
    return {
        path.relative_to(FOLDER).as_posix(): _read(path)
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in TYPES
    }


def _read(path: Path) -> Asset:
    return asset_of(path.read_bytes(), TYPES[path.suffix])


def asset_of(content: bytes, content_type: str) -> Asset:
    """Return the asset of a file's content."""
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Asset(content, gzip.compress(content, mtime=0), content_type, etag)
