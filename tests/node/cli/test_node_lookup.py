import argparse
from pathlib import Path

import pytest

from node.cli.console.node_lookup import client
from node.secrets import identity


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:6100", True),
        ("http://[::1]:6100", True),
        ("http://localhost:6100", True),
        ("http://192.0.2.7:6100", False),
        ("https://gpu7.example", False),
        ("http://127.0.0.1.example", False),
    ],
)
def test_the_control_token_never_leaves_this_machine(tmp_path: Path, url: str, shown: bool) -> None:
    token = identity.control_token(tmp_path)
    arguments = argparse.Namespace(node=url, **{"node.data_dir": str(tmp_path)})
    assert client(arguments).target.token == (token if shown else "")
