"""A support archive contains no secret, in any encoding and at any offset, and replaces no file."""

import base64
import stat
import tarfile

import pytest

from node.diagnosis.bundle import STRUCK, Redactor, write
from node.errors import CommandFailed, WrongUsage

SECRET = "s3cret-Token/with+signs"
REDACTOR = Redactor([SECRET, "abc", ""], home="/home/ann")


@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
@pytest.mark.parametrize("after", ["", "x", "xy"])
def test_a_secret_is_struck_out_in_every_encoding(before, after) -> None:
    content = f"{before}{SECRET}{after}".encode()
    core = SECRET.encode()
    for text in (
        content.decode(),
        content.hex(),
        content.hex().upper(),
        base64.b64encode(content).decode(),
        base64.urlsafe_b64encode(content).decode(),
        "s3cret-Token%2Fwith%2Bsigns",
    ):
        cleaned = REDACTOR.clean(f"<{text}>")
        assert STRUCK in cleaned
        assert core.decode() not in cleaned
        assert core.hex() not in cleaned.lower()


def test_short_words_and_ordinary_text_stay_and_the_home_folder_becomes_a_tilde() -> None:
    assert REDACTOR.clean("abc of /home/ann/data") == "abc of ~/data"


def test_an_archive_is_private_to_its_owner_and_replaces_no_file(tmp_path) -> None:
    path = tmp_path / "support.tar.gz"
    write(path, {"a.json": {"key": SECRET}, "b.txt": f"x {SECRET}"}, REDACTOR, now=1.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        texts = {m.name: archive.extractfile(m).read().decode() for m in archive.getmembers()}
    assert texts.keys() == {"support/README.txt", "support/a.json", "support/b.txt"}
    assert texts["support/b.txt"] == f"x {STRUCK}"
    assert SECRET not in str(texts)
    with pytest.raises(WrongUsage):
        write(path, {}, REDACTOR, now=1.0)
    with pytest.raises(CommandFailed):
        write(tmp_path / "none" / "x.tar.gz", {}, REDACTOR, now=1.0)
