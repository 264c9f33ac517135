"""Grammars for LocalAI backends, given to llama.cpp itself: it accepts them, and its texts follow the schemas."""

import json
from collections.abc import Mapping

import pytest

from router.dialects.localai_grpc.request_mapping import grammar_of
from tests.swarm.client import Client
from tests.swarm.nodes import Swarm
from tests.swarm.waiting import show

pytestmark = pytest.mark.swarm

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["integer", "null"]},
        "mood": {"enum": ["good", 'so "so"', None]},
        "likes": {"type": "array", "items": {"anyOf": [{"type": "boolean"}, {"const": "a\n"}]}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def keeps(value: object) -> bool:
    """Whether a value keeps the schema above."""
    match value:
        case {"name": str(), "age": int() | None, "mood": mood, "likes": list(likes), **more}:
            known = mood in ("good", 'so "so"', None)
            return known and not more and all(like in (True, False, "a\n") for like in likes)
    return False


@pytest.fixture(scope="module")
def llama(swarm: Swarm) -> str:
    worker = swarm.start_worker("llama", "--port", "0", "--threads", "1", module="node.demo.worker")
    return worker.ready.split()[1].removesuffix("/v1")


@pytest.mark.parametrize("schema", [PERSON, {}], ids=["person", "any object"])
async def test_texts_of_llama_cpp_follow_a_schema_under_our_grammar(
    llama: str, client: Client, schema: Mapping[str, object]
) -> None:
    complete = 0
    for seed in range(6):
        body = {
            "prompt": 'Persons as JSON:\n{"name":"Ann","age":5,"mood":"good","likes":[true]}\n',
            "grammar": grammar_of(schema),
            "n_predict": 120,
            "temperature": 0.4,
            "seed": seed,
        }
        async with client.session.post(f"{llama}/completion", json=body) as response:
            assert response.status == 200, await response.text()
            answer = await response.json()
        if answer["stop_type"] != "limit":
            complete += 1
            value = json.loads(answer["content"])
            assert isinstance(value, dict)
            assert not schema or keeps(value)
    show("a schema kept by a grammar", texts=str(complete), cut_off=str(6 - complete))
    assert complete
