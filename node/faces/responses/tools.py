"""Tools of a Responses request. Those that a server runs are refused: none is run here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from node.faces.responses.items import MAX_ID_CHARACTERS, MAX_TEXT_CHARACTERS, in_chat
from router.canonical import MAX_TOOLS
from router.canonical.values import flag, needed, text
from router.errors import BadRequest, WorkerUnable

_PARTS = ("name", "description", "parameters", "strict")
_SPACE = {"type", "name", "tools"}


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is offered: its name, its namespace or `""`, and what a chat says of it. `unheard` has no effect."""

    name: str
    namespace: str
    said: Mapping[str, object]
    unheard: Mapping[str, object]

    @property
    def called(self) -> Mapping[str, str]:
        """What a call of it is called."""
        space = {"namespace": self.namespace} if self.namespace else {}
        return {"name": self.name, **space}


def functions(fields: Mapping[str, object]) -> Mapping[str, Function]:
    """Return what is offered by what a chat calls it; raise `BadRequest` or `WorkerUnable`."""
    found: dict[str, Function] = {}
    for function, at in _functions(fields.get("tools"), "tools", ""):
        name = in_chat(function.name, function.namespace)
        if name in found:
            raise BadRequest("two tools have this name", param=f"{at}.name")
        if len(found) >= MAX_TOOLS:
            raise BadRequest(f"at most {MAX_TOOLS} functions", param="tools")
        found[name] = function
    return found


def offered(
    fields: Mapping[str, object], functions: Mapping[str, Function]
) -> Mapping[str, object]:
    """Return the fields of a chat that offer functions as `tool_choice` says; raise `BadRequest` or `WorkerUnable`."""
    match fields.get("tool_choice"):
        case {"type": "allowed_tools", "mode": "auto" | "required" as choice, "tools": [*some]}:
            names = [_name(o, f"tool_choice.tools[{at}]", functions) for at, o in enumerate(some)]
            functions = {name: functions[name] for name in names}
        case {"type": "function"} as one:
            name = _name(one, "tool_choice", functions)
            choice = {"type": "function", "function": {"name": name}}
        case {"type": str(kind)} if kind != "allowed_tools":
            raise WorkerUnable(f"{kind[:64]!r} cannot be chosen here", param="tool_choice.type")
        case None | "auto" | "none" | "required" as choice:
            if choice == "required" and not functions:
                raise BadRequest("there is no tool that could be called", param="tool_choice")
        case _:
            words = "auto, none, required, or an object with a type"
            raise BadRequest(f"`tool_choice` must be {words}", param="tool_choice")
    parallel = flag(fields, "parallel_tool_calls")
    if not functions:
        return {}
    tools = [{"type": "function", "function": one.said} for one in functions.values()]
    said = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}
    return {name: value for name, value in said.items() if value is not None}


def _functions(given: object, at: str, namespace: str) -> Iterator[tuple[Function, str]]:
    """Read a list of tools, each with its place; a namespace holds no other."""
    if given is None:
        return
    if not isinstance(given, list) or len(given) > MAX_TOOLS:
        raise BadRequest(f"this must be a list of at most {MAX_TOOLS} tools", param=at)
    for number, tool in enumerate(given):
        place = f"{at}[{number}]"
        if not isinstance(tool, dict) or not isinstance(kind := tool.get("type"), str):
            raise BadRequest("a tool must be an object with a type", param=place)
        if kind == "namespace" and not namespace:
            name, inside = _checked(tool, place), f"{place}.tools"
            unheard = {f"tools.{part}": tool[part] for part in tool.keys() - _SPACE}
            for function, where in _functions(tool.get("tools"), inside, name):
                yield replace(function, unheard={**function.unheard, **unheard}), where
        elif kind == "function":
            yield _function(tool, place, namespace), place
        else:
            runs = f"tools of type {kind[:64]!r} are not run here; offer functions"
            raise WorkerUnable(runs, param=f"{place}.type")


def _function(tool: Mapping[str, object], at: str, namespace: str) -> Function:
    name = _checked(tool, at)
    if not isinstance(tool.get("parameters"), dict | None):
        raise BadRequest("`parameters` must be a JSON schema", param=f"{at}.parameters")
    said = {part: tool[part] for part in _PARTS if tool.get(part) is not None}
    unheard = {f"tools.{part}": tool[part] for part in tool.keys() - {*_PARTS, "type"}}
    return Function(name, namespace, {**said, "name": in_chat(name, namespace)}, unheard)


def _checked(tool: Mapping[str, object], at: str) -> str:
    """Return the name of a tool, all of whose words are as they must be."""
    try:
        text(tool, "description", MAX_TEXT_CHARACTERS)
        flag(tool, "strict")
        return needed(tool, "name", MAX_ID_CHARACTERS)
    except BadRequest as error:
        raise BadRequest(str(error), param=f"{at}.{error.param}") from error


def _name(one: object, at: str, functions: Mapping[str, object]) -> str:
    match one:
        case {"type": "function", "name": str(name)} if name in functions:
            return name
        case {"type": "function"}:
            raise BadRequest("no tool has this name", param=f"{at}.name")
        case {"type": str(kind)}:
            raise WorkerUnable(f"{kind[:64]!r} cannot be chosen here", param=f"{at}.type")
    raise BadRequest("a tool must be an object with a type", param=at)


def repeated(fields: Mapping[str, object]) -> Mapping[str, object]:
    """Return what a response repeats of its tools, once nothing was found wrong with them."""
    tools, parallel = fields.get("tools"), fields.get("parallel_tool_calls")
    listed: Sequence[object] = tools if isinstance(tools, list) else []
    return {
        "tools": listed,
        "tool_choice": fields.get("tool_choice") or "auto",
        "parallel_tool_calls": parallel is not False,
    }
