from pathlib import Path

from node.config.paths import user_data_dir


def test_the_data_directory_follows_the_xdg_specification() -> None:
    home = {"HOME": "/home/ada"}
    assert user_data_dir(home, platform="linux") == Path("/home/ada/.local/share/modelvine")
    chosen = home | {"XDG_DATA_HOME": "/data"}
    assert user_data_dir(chosen, platform="linux") == Path("/data/modelvine")


def test_a_relative_xdg_directory_is_ignored() -> None:
    relative = {"HOME": "/home/ada", "XDG_DATA_HOME": "data"}
    assert user_data_dir(relative, platform="linux") == Path("/home/ada/.local/share/modelvine")


def test_on_macos_the_data_directory_is_in_application_support() -> None:
    found = user_data_dir({"HOME": "/Users/ada"}, platform="darwin")
    assert found == Path("/Users/ada/Library/Application Support/modelvine")
