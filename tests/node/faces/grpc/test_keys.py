"""Keys that open a face over gRPC."""

import pytest

from node.errors import SecretRefused
from node.faces.grpc import read_keys


def test_without_a_file_no_key_is_needed() -> None:
    assert read_keys("faces.x_keys", "").open_to("")


def test_each_line_is_a_key(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text(" first \n\nsecond\n")
    file.chmod(0o600)
    keys = read_keys("faces.x_keys", str(file))
    assert [keys.open_to(key) for key in ("first", "second", "", "third", " first ")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "mode"),
    [("", 0o600), ("\n \n", 0o600), ("a@b\n", 0o600), ("a\n", 0o644), ("a\xff\x00b", 0o600)],
)
def test_a_file_without_valid_keys_or_readable_by_others_is_refused(tmp_path, text, mode) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(
        (OSError, SecretRefused), match=r"faces.x_keys is .* must hold keys|chmod 600"
    ):
        read_keys("faces.x_keys", str(file))


def test_a_file_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(OSError, match=r"faces.x_keys is .*no such file"):
        read_keys("faces.x_keys", str(tmp_path / "none"))
