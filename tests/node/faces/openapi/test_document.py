"""The document describes every route: its purpose, the roles that may call it, its answers; and the node does as described."""

import re

import orjson
import pytest
from aiohttp import web
from jsonschema import Draft202012Validator

from node.faces.app import application
from node.faces.openapi.description import Allowed
from node.faces.openapi.document import ALIASES, TABLES, document, is_described, operations
from tests.node.faces.console.test_console import bearer

ROLES_THAT_MAY_NOT = {
    Allowed.EVERYBODY: (),
    Allowed.KEY: (),
    Allowed.ASK: ("viewer",),
    Allowed.LOOK: ("user",),
    Allowed.CHANGE: ("user", "viewer"),
}


def routes_of(app):
    return {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.method != "HEAD" and is_described(route.resource.canonical)
    }


def references(value):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def called(path):
    return re.sub(r"\{\w+\}", "x", path)


async def answer_of(running, method, path, key=""):
    headers = bearer(key) if key else {}
    async with running.http.request(method, called(path), headers=headers) as response:
        if response.content_type == "text/event-stream":
            return response.status, response.content_type, b""
        return response.status, response.content_type, await response.read()


async def test_the_document_has_exactly_the_routes_of_the_api(app, api):
    found = {
        (method.upper(), re.sub(r"\{id\}.*", "{tail}", path) if operation["tags"][0] in ("Services", ALIASES) else path)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    }  # fmt: skip
    assert found == routes_of(app)
    assert {"/v1/chat/completions", "/api/v1/keys", "/api/v0/id", "/metrics"} <= {*api["paths"]}


async def test_every_description_belongs_to_a_route(described):
    used = {f"{method} {path}" for method, path, *_ in described}
    assert {key for table in TABLES.values() for key in table} <= used


def test_a_route_without_a_description_is_an_error():
    async def new(_):
        return web.Response()

    app = application([web.get("/api/v1/new", new)], lambda _: None)
    with pytest.raises(KeyError):
        list(operations(app))


def test_routes_that_imitate_another_system_are_left_out():
    async def other(_):
        return web.Response()

    app = application([web.get("/tgi/new", other)], lambda _: None)
    assert document(app)["paths"] == {}


async def test_operation_ids_are_unique_and_every_reference_resolves(api):
    names = [
        operation["operationId"]
        for methods in api["paths"].values()
        for operation in methods.values()
    ]
    assert len(names) == len({*names})
    for reference in {*references(api)}:
        target = api
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


async def test_schemas_are_valid_json_schemas(api):
    for schema in api["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    keys = api["components"]["schemas"]["keys.WantedKey"]
    assert keys["properties"]["model_limits"]["items"]["$ref"].endswith("/keys.WantedLimit")


async def test_the_node_admits_exactly_the_roles_that_the_document_says(closed, keys, described):
    for method, path, _, operation in described:
        if operation.may is Allowed.EVERYBODY:
            assert (await answer_of(closed, method, path))[0] == 200, path
            continue
        assert (await answer_of(closed, method, path))[0] == 401, path
        for role, key in keys.items():
            status, _, body = await answer_of(closed, method, path, key)
            refused = role in ROLES_THAT_MAY_NOT[operation.may]
            assert (status == 403) is refused, (method, path, role, body)


async def test_every_answer_matches_the_document(closed, keys, api):
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            status, kind, body = await answer_of(closed, method, path, keys["operator"])
            assert str(status) in operation["responses"], (method, path, status, body)
            response = operation["responses"][str(status)]
            if "$ref" in response:
                response = api["components"]["responses"][response["$ref"].rpartition("/")[2]]
            assert kind in response["content"], (method, path, kind)
            if kind == "application/json":
                schema = {**response["content"][kind]["schema"], "components": api["components"]}
                Draft202012Validator(schema).validate(orjson.loads(body))
