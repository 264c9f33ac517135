"""Mapping of Anthropic's tools to OpenAI's: only those that the caller runs itself, and describes."""

import re
from collections.abc import Mapping

from node.faces.anthropic.values import inside, rows, wrong
from router.canonical import MAX_TOOLS
from router.canonical.values import choice, flag
from router.errors import BadRequest

MAX_DESCRIPTION_CHARACTERS = 256 * 1024
"""The longest description of one tool."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
# What nobody here has a word for, and the answer is the same without.
_UNHEARD = ("defer_loading", "input_examples")


def tools_of(fields: Mapping[str, object]) -> tuple[list[dict[str, object]], tuple[str, ...]]:
    """Return the tools, and what of them has no effect; raise `BadRequest`."""
    if fields.get("tools") is None:
        return [], ()
    tools: list[dict[str, object]] = []
    unheard: set[str] = set()
    for where, tool in rows(fields["tools"], "tools", MAX_TOOLS):
        tools.append({"type": "function", "function": _function(tool, where)})
        unheard |= {f"tools.{name}" for name in _UNHEARD if tool.get(name)}
    return tools, tuple(sorted(unheard))


def choice_of(fields: Mapping[str, object], tools: list[dict[str, object]]) -> dict[str, object]:
    """Return which tool must be called, and how many at once; raise `BadRequest`."""
    if fields.get("tool_choice") is None:
        return {}
    wanted = inside(fields, "tool_choice")
    if wanted.get("tool_choice.type") is None:
        raise wrong("tool_choice.type", "must be one of: auto, any, tool, none")
    kind = choice(wanted, "tool_choice.type", "auto", "any", "tool", "none")
    if not tools:
        if kind in ("any", "tool"):
            raise wrong("tool_choice", "needs `tools`")
        return {}
    alone = flag(wanted, "tool_choice.disable_parallel_tool_use")
    one = {"parallel_tool_calls": False} if alone else {}
    match kind:
        case "any":
            return {"tool_choice": "required", **one}
        case "tool":
            return {"tool_choice": _named(wanted, tools), **one}
        case _:
            return {"tool_choice": kind, **one}


def _named(wanted: Mapping[str, object], tools: list[dict[str, object]]) -> dict[str, object]:
    name = wanted.get("tool_choice.name")
    for tool in tools:
        function = tool["function"]
        if isinstance(function, dict) and function["name"] == name:
            return {"type": "function", "function": {"name": name}}
    raise wrong("tool_choice.name", "must be the name of one of the tools")


def _function(tool: Mapping[str, object], where: str) -> dict[str, object]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        shown = f"{kind[:64]!r}" if isinstance(kind, str) else "of this type"
        raise BadRequest(
            f"`{where}.type`: the tool {shown} is Anthropic's own; describe it with an `input_schema`",
            param=f"{where}.type",
        )
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong(f"{where}.name", "must be 1 to 128 letters, digits, `_` or `-`")
    if not isinstance(schema, dict):
        raise wrong(f"{where}.input_schema", "must be a JSON schema")
    function: dict[str, object] = {"name": name, "parameters": schema}
    description = tool.get("description")
    if description is not None:
        if not isinstance(description, str) or len(description) > MAX_DESCRIPTION_CHARACTERS:
            most = f"must be a text of at most {MAX_DESCRIPTION_CHARACTERS:,} characters"
            raise wrong(f"{where}.description", most)
        function["description"] = description
    if tool.get("strict") is not None:
        if not isinstance(tool["strict"], bool):
            raise wrong(f"{where}.strict", "must be true or false")
        function["strict"] = tool["strict"]
    return function
