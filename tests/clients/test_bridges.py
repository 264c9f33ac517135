"""Published clients at bridges: one bridge for each protocol, in front of a node that has all models."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.demo.play import ProcessGroup
from tests.clients.conftest import MODELS, run
from tests.clients.test_clients import CALL, read
from tests.clients.tried import CLIENTS, Client
from tests.swarm.nodes import Node

pytestmark = pytest.mark.clients

ANSWERING = {
    "with_anthropic.py": "anthropic",
    "with_ai_sdk_anthropic.mjs": "anthropic",
    "with_ai_sdk_responses.mjs": "responses",
    "with_ai_sdk.mjs": "openai",
    "with_huggingface_hub.py": "openai",
}
"""Script → the protocol of the bridge that it asks; the others ask for more than one protocol."""

Bridge = Callable[[str], str]


@pytest.fixture(scope="module")
def bridge(asked: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    """Return a function that gives the URL of a bridge for a protocol."""
    models = [argument for name in MODELS for argument in ("--model", name)]
    with ProcessGroup(tmp_path_factory.mktemp("bridges")) as stage:
        urls: dict[str, str] = {}

        def start(dialect: str) -> str:
            if dialect not in urls:
                options = ("--dialect", dialect, "--upstream", asked.http, *models)
                actor = stage.start(dialect, "node", "bridge", *options)
                urls[dialect] = f"http://{actor.fields[dialect]}"
            return urls[dialect]

        yield start


@pytest.mark.parametrize("client", [c for c in CLIENTS if c.script in ANSWERING], ids=str)
def test_a_client_sees_at_a_bridge_what_it_sees_at_a_node(
    client: Client, bridge: Bridge, tmp_path: Path
) -> None:
    result = run(client, bridge(ANSWERING[client.script]), home=tmp_path)
    texts: dict[str, Any] = result.get("responses") or {
        "text": result["chat"],
        "deltas": result["stream"],
        "calls": result["tools"],
    }
    assert texts["text"].strip()
    assert len([piece for piece in texts["deltas"] if piece]) >= 3
    assert read(texts["calls"]) == [CALL, CALL]
    assert set(result.get("models", ())) <= set(MODELS)
    assert result["unknown"]["raised"] == client.unknown
    assert result["broken"]["raised"] == client.broken
