"""Mapping of Anthropic's messages to OpenAI's: turns of blocks in, messages out.

A user's turn may contain results of tools. These become messages of their own, before the rest of the turn. OpenAI's form allows
no images in them, so images follow in the user's message.

It also maps Anthropic's tools to OpenAI's: only those that the caller runs itself, and describes.
"""

import binascii
import re
from collections.abc import Callable, Iterator, Mapping

import orjson

from node.faces.anthropic.errors import field_error, fields_of, mapping, required_text, rows
from router.canonical.text import MAX_MESSAGES, MAX_TOOLS
from router.canonical.values import read_choice, read_flag
from router.errors import BadRequest

MAX_DESCRIPTION_CHARACTERS = 256 * 1024
"""The longest description of one tool."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
# Fields without an equivalent here; the answer is the same without them.
_UNHEARD = ("defer_loading", "input_examples")


def tools_of(fields: Mapping[str, object]) -> tuple[list[dict[str, object]], tuple[str, ...]]:
    """Return the tools, and the names of their fields without effect; raise `BadRequest`."""
    if fields.get("tools") is None:
        return [], ()
    tools: list[dict[str, object]] = []
    unheard: set[str] = set()
    for path, tool in rows(fields["tools"], "tools", MAX_TOOLS):
        tools.append({"type": "function", "function": _function(tool, path)})
        unheard |= {f"tools.{name}" for name in _UNHEARD if tool.get(name)}
    return tools, tuple(sorted(unheard))


def choice_of(fields: Mapping[str, object], tools: list[dict[str, object]]) -> dict[str, object]:
    """Return OpenAI's fields for which tool must be called, and whether several may be; raise `BadRequest`."""
    if fields.get("tool_choice") is None:
        return {}
    choice = fields_of(fields, "tool_choice")
    if choice.get("tool_choice.type") is None:
        raise field_error("tool_choice.type", "must be one of: auto, any, tool, none")
    kind = read_choice(choice, "tool_choice.type", "auto", "any", "tool", "none")
    if not tools:
        if kind in ("any", "tool"):
            raise field_error("tool_choice", "needs `tools`")
        return {}
    alone = read_flag(choice, "tool_choice.disable_parallel_tool_use")
    parallel = {"parallel_tool_calls": False} if alone else {}
    match kind:
        case "any":
            return {"tool_choice": "required", **parallel}
        case "tool":
            return {"tool_choice": _named(choice, tools), **parallel}
        case _:
            return {"tool_choice": kind, **parallel}


def _named(choice: Mapping[str, object], tools: list[dict[str, object]]) -> dict[str, object]:
    name = choice.get("tool_choice.name")
    for tool in tools:
        function = tool["function"]
        if isinstance(function, dict) and function["name"] == name:
            return {"type": "function", "function": {"name": name}}
    raise field_error("tool_choice.name", "must be the name of one of the tools")


def _function(tool: Mapping[str, object], path: str) -> dict[str, object]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        shown = f"{kind[:64]!r}" if isinstance(kind, str) else "of this type"
        raise BadRequest(
            f"`{path}.type`: the tool {shown} is one of Anthropic's; define it with an `input_schema`",
            param=f"{path}.type",
        )
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise field_error(f"{path}.name", "must be 1 to 128 letters, digits, `_` or `-`")
    if not isinstance(schema, dict):
        raise field_error(f"{path}.input_schema", "must be a JSON schema")
    function: dict[str, object] = {"name": name, "parameters": schema}
    description = tool.get("description")
    if description is not None:
        if not isinstance(description, str) or len(description) > MAX_DESCRIPTION_CHARACTERS:
            message = f"must be a text of at most {MAX_DESCRIPTION_CHARACTERS:,} characters"
            raise field_error(f"{path}.description", message)
        function["description"] = description
    if tool.get("strict") is not None:
        if not isinstance(tool["strict"], bool):
            raise field_error(f"{path}.strict", "must be true or false")
        function["strict"] = tool["strict"]
    return function


MAX_BLOCKS = 10_000
"""The most blocks of one message."""

MAX_ID_CHARACTERS = 256
"""The longest id of a call."""

MAX_NAME_CHARACTERS = 128
"""The longest name of a tool."""

MAX_URL_CHARACTERS = 8_192
"""The longest URL of an image, and the longest title and source of a search result."""

MAX_TEXT_CHARACTERS = 64 * 1024 * 1024
"""The longest text; `router.max_body_bytes` is the stricter limit."""

IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""Types of images that may be sent."""

FAILED = "The tool failed: "
"""Prefix of the result of a tool that failed: OpenAI's form has no field for that."""

Block = tuple[str, Mapping[str, object]]
"""The place of a block, and the block."""

Payload = dict[str, object]
"""A message, or a part of one, in OpenAI's form."""


def messages_of(fields: Mapping[str, object]) -> list[Payload]:
    """Return a request's messages, the `system` field first; raise `BadRequest`, which names the place."""
    said: list[Payload] = []
    if fields.get("system") is not None:
        system = _joined(_texts(_blocks(fields["system"], "system"), "system"))
        said += [{"role": "system", "content": system}] if system else []
    turns = list(_turns(fields.get("messages")))
    if not turns:
        raise field_error("messages", "must be a list of messages")
    for role, blocks in turns:
        said += _READERS[role](blocks)
    return said


def _turns(value: object) -> Iterator[tuple[str, list[Block]]]:
    """Yield the messages, merging consecutive ones of one role: the templates of some models require alternating turns."""
    role, blocks = "", list[Block]()
    for path, message in rows(value, "messages", MAX_MESSAGES):
        message_role = message.get("role")
        if not isinstance(message_role, str) or message_role not in _READERS:
            raise field_error(f"{path}.role", "must be user, assistant or system")
        if message_role != role and role:
            yield role, blocks
            blocks = []
        role = message_role
        blocks += _blocks(message.get("content"), f"{path}.content")
    if role:
        yield role, blocks


def _blocks(content: object, path: str) -> list[Block]:
    if isinstance(content, str):
        return [(path, {"type": "text", "text": content})]
    if not isinstance(content, list):
        raise field_error(path, "must be a text or a list of blocks")
    return list(rows(content, path, MAX_BLOCKS))


def _of_system(blocks: list[Block]) -> list[Payload]:
    return [{"role": "system", "content": _joined(_texts(blocks, "a system message"))}]


def _of_user(blocks: list[Block]) -> list[Payload]:
    results: list[Payload] = []
    parts: list[Payload] = []
    shown: list[Payload] = []
    for path, block in blocks:
        if block.get("type") == "tool_result":
            result, images = _result(block, path)
            results.append(result)
            shown += images
        else:
            parts += _parts(block, path)
    parts = shown + parts
    if parts or not results:
        results.append({"role": "user", "content": _content(parts)})
    return results


def _of_assistant(blocks: list[Block]) -> list[Payload]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Payload] = []
    for path, block in blocks:
        match block.get("type"):
            case "text":
                texts.append(_text(block, path))
            case "tool_use":
                calls.append(_call(block, path))
            case "thinking":
                thoughts.append(
                    required_text(block, "thinking", path, least=0, most=MAX_TEXT_CHARACTERS)
                )
            case "redacted_thinking":
                # Only Anthropic can read it.
                pass
            case other:
                raise _unknown_type(other, path, "an assistant message")
    text = "".join(texts)
    message: Payload = {"role": "assistant", "content": text or (None if calls else "")}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


_READERS: Mapping[str, Callable[[list[Block]], list[Payload]]] = {
    "user": _of_user,
    "assistant": _of_assistant,
    "system": _of_system,
}


def _call(block: Mapping[str, object], path: str) -> Payload:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise field_error(f"{path}.input", "must be an object")
    function = {
        "name": required_text(block, "name", path, most=MAX_NAME_CHARACTERS),
        "arguments": orjson.dumps(arguments).decode(),
    }
    id_ = required_text(block, "id", path, most=MAX_ID_CHARACTERS)
    return {"id": id_, "type": "function", "function": function}


def _result(block: Mapping[str, object], path: str) -> tuple[Payload, list[Payload]]:
    """Return the message with a tool's result, and the images in the result."""
    failed = block.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        raise field_error(f"{path}.is_error", "must be true or false")
    parts: list[Payload] = []
    if block.get("content") is not None:
        for inner_path, inner in _blocks(block["content"], f"{path}.content"):
            has_reference = inner.get("type") == "tool_reference"
            parts += [_reference(inner, inner_path)] if has_reference else _parts(inner, inner_path)
    text = _joined([str(part["text"]) for part in parts if part["type"] == "text"])
    images = [part for part in parts if part["type"] != "text"]
    id_ = required_text(block, "tool_use_id", path, most=MAX_ID_CHARACTERS)
    if images:
        text = _joined([text, f"(Images follow: {len(images)}.)"])
        images = [_words(f"Images of the result of {id_}:"), *images]
    content = FAILED + text if failed else text
    return {"role": "tool", "tool_call_id": id_, "content": content}, images


def _reference(block: Mapping[str, object], path: str) -> Payload:
    """Return the text for a tool that a search found. The worker knows the tool: deferred ones are offered too."""
    name = block.get("tool_name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise field_error(f"{path}.tool_name", f"must match {_NAME.pattern}")
    return _words(f"The tool {name} can be called.")


def _parts(block: Mapping[str, object], path: str) -> list[Payload]:
    """Return the parts of a user's block, without empty texts; raise `BadRequest`."""
    match block.get("type"):
        case "text":
            text = _text(block, path)
        case "image":
            return [_image(block, path)]
        case "document":
            return _document(block, path)
        case "search_result":
            inner = _texts(_blocks(block.get("content"), f"{path}.content"), path)
            heads = [
                required_text(block, name, path, most=MAX_URL_CHARACTERS)
                for name in ("title", "source")
            ]
            text = _joined([*heads, *inner])
        case other:
            raise _unknown_type(other, path, "a user message")
    return [_words(text)] if text else []


def _image(block: Mapping[str, object], path: str) -> Payload:
    source = mapping(block, "source", f"{path}.source")
    match source.get("type"):
        case "base64":
            media = source.get("media_type")
            if not isinstance(media, str) or media not in IMAGES:
                types = ", ".join(sorted(IMAGES))
                raise field_error(f"{path}.source.media_type", f"must be one of: {types}")
            url = f"data:{media};base64,{_base64(source.get('data'), f'{path}.source.data')}"
        case "url":
            url = required_text(source, "url", f"{path}.source", most=MAX_URL_CHARACTERS)
            if not url.startswith(("https://", "http://")) or not url.isprintable():
                raise field_error(f"{path}.source.url", "must be an address of http or https")
        case _:
            raise field_error(
                f"{path}.source.type", "must be base64 or url: this node stores no files"
            )
    return {"type": "image_url", "image_url": {"url": url}}


def _base64(data: object, path: str) -> str:
    try:
        if isinstance(data, str) and binascii.a2b_base64(data, strict_mode=True):
            return data
    except ValueError as error:
        raise field_error(path, "must be base64") from error
    raise field_error(path, "must be base64")


def _document(block: Mapping[str, object], path: str) -> list[Payload]:
    """Return the parts of a text document; raise `BadRequest`."""
    if mapping(block, "citations", f"{path}.citations").get("enabled"):
        raise field_error(f"{path}.citations", "are not supported: workers do not report sources")
    head = [
        required_text(block, name, path, most=MAX_TEXT_CHARACTERS)
        for name in ("title", "context")
        if block.get(name)
    ]
    source = mapping(block, "source", f"{path}.source")
    match source.get("type"):
        case "text":
            inner = [
                _words(required_text(source, "data", f"{path}.source", most=MAX_TEXT_CHARACTERS))
            ]
        case "content":
            inner = []
            for part_path, part in _blocks(source.get("content"), f"{path}.source.content"):
                if part.get("type") not in ("text", "image"):
                    raise _unknown_type(part.get("type"), part_path, "a document")
                inner += _parts(part, part_path)
        case _:
            raise field_error(
                f"{path}.source.type", "must be text or content: PDF is not supported"
            )
    return [*map(_words, head), *inner]


def _texts(blocks: list[Block], what: str) -> list[str]:
    texts: list[str] = []
    for path, block in blocks:
        if block.get("type") != "text":
            raise _unknown_type(block.get("type"), path, what)
        texts.append(_text(block, path))
    return texts


def _text(block: Mapping[str, object], path: str) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        raise field_error(f"{path}.text" if "[" in path else path, "must be a text")
    return text


def _words(text: str) -> Payload:
    return {"type": "text", "text": text}


def _content(parts: list[Payload]) -> object:
    """Return the parts if there are images among them, else one text, which every worker supports."""
    if all(part["type"] == "text" for part in parts):
        return _joined([str(part["text"]) for part in parts])
    return parts


def _joined(texts: list[str]) -> str:
    return "\n".join(filter(None, texts))


def _unknown_type(kind: object, path: str, what: str) -> BadRequest:
    shown = f"{kind[:64]!r}" if isinstance(kind, str) else "without a type"
    return BadRequest(
        f"`{path}.type`: blocks {shown} are not supported in {what}", param=f"{path}.type"
    )
