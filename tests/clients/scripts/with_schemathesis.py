"""Ask a node for what it describes, with valid requests, and check each answer against the description.

usage: with_schemathesis.py URL MODEL
"""

import sys
from collections.abc import Mapping
from typing import Any

import schemathesis
from openapi_spec_validator import validate
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def requests(model: str, peer: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the requests: method and path → the parts of the request."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    row = {"model": "another", "api": "http://127.0.0.1:1"}
    return {
        "POST /v1/chat/completions": {"body": body},
        "POST /v1/openai/v1/chat/completions": {"body": body | {"stream": True}},
        "POST /v1/completions": {"body": {"model": model, "prompt": "hello", "max_tokens": 4}},
        "POST /v1/messages": {"body": body},
        "POST /v1/messages/count_tokens": {"body": body},
        "POST /v1/responses": {"body": {"model": model, "input": "hello"}},
        "POST /v1/inference/chat-completion": {
            "body": {"model_id": model, "messages": body["messages"]}
        },
        "GET /v1/models": {},
        "GET /v1/models/{tail}": {"path_parameters": {"tail": model}},
        "POST /api/v0/chat/completion/proxy": {"body": body | {"project": "p"}},
        "POST /api/v0/ai/project/register": {"body": {"project": "q", "models": [row]}},
        "POST /api/v0/ai/model/register": {"body": {"project": "r", **row}},
        "POST /api/v0/ai/model/unregister": {"body": {"project": "r", **row}},
        "POST /api/v0/ai/project/unregister": {"body": {"project": "q"}},
        "GET /api/v0/ai/projects/models": {"query": {"project": "p"}},
        "GET /api/v0/ai/projects/peers": {"query": {"project": "p", "model": model}},
        "POST /api/v0/ai/project/peer": {"body": {"node_id": peer}},
        "POST /api/v0/host/info": {"body": {}},
        "POST /api/v0/peer": {"body": {"node_id": peer}},
        "GET /api/v1/catalog": {},
        "GET /api/v1/status": {},
        "GET /api/v1/route": {"query": {"model": model}},
        "POST /api/v1/route": {"body": body},
        "GET /api/v1/requests": {},
        "GET /api/v1/history": {"query": {"model": model}},
        "GET /api/v1/usage": {"query": {"by": "day,model"}},
        "POST /api/v1/keys": {"body": {"keys": [{"name": "ann"}]}},
        "POST /api/v1/keys/{name}/rotate": {"path_parameters": {"name": "ann"}},
        "POST /api/v1/keys/{name}/revoke": {"path_parameters": {"name": "ann"}},
        "GET /api/v1/keys": {},
        "POST /api/v1/grants": {"body": {"name": "guest"}},
        "GET /api/v1/audit": {},
        "GET /api/v1/logs": {"query": {"number": 3}},
        "GET /api/v1/examination": {},
    }


def main(url: str, model: str) -> None:
    """Send each request once; raise where an answer is not as described."""
    described = schemathesis.openapi.from_url(f"{url}/openapi.json")
    validate(described.raw_schema)
    me = described["/api/v1/me"]["GET"].Case().call().json()
    for name, parts in requests(model, me["node"]).items():
        method, _, path = name.partition(" ")
        media = {"media_type": "application/json"} if "body" in parts else {}
        answer = described[path][method].Case(**parts, **media).call_and_validate(checks=CHECKS)
        assert answer.status_code == 200, (name, answer.status_code, answer.text)


if __name__ == "__main__":
    main(*sys.argv[1:])
