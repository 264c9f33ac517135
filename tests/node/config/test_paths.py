from pathlib import Path

import pytest

from node.config.paths import user_data_dir
from node.errors import WrongSetting


def test_the_data_directory_follows_the_xdg_specification() -> None:
    home = {"HOME": "/home/ada"}
    assert user_data_dir(home, platform="linux") == Path("/home/ada/.local/share/modelvine")
    chosen = home | {"XDG_DATA_HOME": "/data"}
    assert user_data_dir(chosen, platform="linux") == Path("/data/modelvine")


def test_a_relative_xdg_directory_is_ignored() -> None:
    relative = {"HOME": "/home/ada", "XDG_DATA_HOME": "data"}
    assert user_data_dir(relative, platform="linux") == Path("/home/ada/.local/share/modelvine")


def test_on_macos_the_data_directory_is_in_application_support() -> None:
    path = user_data_dir({"HOME": "/Users/ada"}, platform="darwin")
    assert path == Path("/Users/ada/Library/Application Support/modelvine")


def test_a_user_without_a_home_is_told_how_to_set_the_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with pytest.raises(WrongSetting, match="--data-dir or MODELVINE_DATA_DIR"):
        user_data_dir({}, platform="linux")
    chosen = {"XDG_DATA_HOME": "/data"}
    assert user_data_dir(chosen, platform="linux") == Path("/data/modelvine")
