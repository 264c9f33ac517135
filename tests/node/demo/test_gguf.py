"""The model that the demo generates: the same bytes everywhere, and small."""

import struct
from pathlib import Path

from node.demo import gguf


def test_the_same_seed_gives_the_same_file_and_another_seed_another(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two", "three")]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        gguf.write(file, seed=seed)
    one, two, three = (file.read_bytes() for file in files)
    assert one == two
    assert one != three
    assert len(one) == len(three) < 512 * 1024


def test_the_file_begins_as_the_format_says(tmp_path: Path) -> None:
    gguf.write(tmp_path / "model")
    magic, version, tensors, entries = struct.unpack_from(
        "<4sIQQ", (tmp_path / "model").read_bytes()
    )
    assert (magic, version) == (b"GGUF", 3)
    assert tensors == 12
    assert entries > 15
