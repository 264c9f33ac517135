"""Mapping of Llama Stack requests to the bodies of OpenAI's requests. Pure."""

from collections.abc import Mapping

import orjson

from router.canonical.values import read_flag, read_integer, read_number
from router.errors import BadRequest

FIELDS = frozenset({"model", "messages", "options", "n_completions", "stream"})
"""Fields of a request that are read; others have no effect, and are named in the answer."""

OPTIONS = ("max_tokens", "temperature", "top_p")
"""Options with OpenAI's names and meanings."""

ROLES = ("system", "developer", "user", "assistant", "tool")
"""The roles of messages."""

MAX_MESSAGES = 10_000
_MOST = 2**31 - 1
_MAX_NAMED = 32
_LONGEST_NAME = 64
# A message of a model has no role: it is recognised by these fields.
_OF_A_CALLER = frozenset({"role", "text", "attachments", "metadata"})
_OF_A_MODEL = frozenset({"id", "tokens", "tool_call", "eot", "is_complete", "finish_reason"})


def body_of(fields: Mapping[str, object], *, streams: bool) -> dict[str, object]:
    """Return a chat in OpenAI's form; raise `BadRequest`, which names the field."""
    body: dict[str, object] = {"model": fields.get("model"), "messages": _messages(fields)}
    options = _options(fields)
    for name in ("temperature", "top_p"):
        read_number(options, name, 0, _MOST)
    read_integer(options, "max_tokens", 0, _MOST)
    body |= {name: options[name] for name in OPTIONS if options.get(name) is not None}
    if body.get("max_tokens") == 0:
        # In later versions of the protocol 0 means no limit.
        del body["max_tokens"]
    if read_flag(options, "logprobs"):
        # Some servers take a missing `top_logprobs` as no log probabilities at all.
        body |= {"logprobs": True, "top_logprobs": 1}
    if (count := read_integer(fields, "n_completions", 1, _MOST)) is not None:
        body["n"] = count
    if not isinstance(fields.get("stream"), bool | None):
        raise BadRequest("`stream` must be true or false", param="stream")
    if streams:
        # The last piece contains the usage.
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def of_the_specification(fields: Mapping[str, object]) -> bool:
    """Return whether a checked request, `stream` aside, has only fields of the specification.

    This node understands further fields, which a worker may refuse.
    """
    messages = fields.get("messages")
    has_known_fields = set(fields) - {"stream"} <= FIELDS and set(_options(fields)) <= {
        *OPTIONS,
        "logprobs",
    }
    known_names = _OF_A_CALLER | _OF_A_MODEL
    listed = messages if isinstance(messages, list) else []
    return has_known_fields and all(
        isinstance(item, dict) and set(item) <= known_names for item in listed
    )


def dropped_of(fields: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of fields without effect, as far as a header can hold them."""
    names = [name for name in fields if name not in FIELDS]
    names += [
        f"options.{name}" for name, value in _options(fields).items() if _unheard(name, value)
    ]
    short_names = (name for name in names if len(name) <= _LONGEST_NAME and name.isascii())
    return tuple(sorted(name for name in short_names if name.isprintable() and "," not in name))[
        :_MAX_NAMED
    ]


def names_of(fields: Mapping[str, object]) -> Mapping[str, str]:
    """Return the caller's names for the parameters in OpenAI's form."""
    options = (name for name, value in _options(fields).items() if value is not None)
    return {"n": "n_completions", **{name: f"options.{name}" for name in options}}


def _unheard(name: str, value: object) -> bool:
    return name not in (*OPTIONS, "logprobs") and value is not None and value is not False


def _options(fields: Mapping[str, object]) -> Mapping[str, object]:
    options = fields.get("options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest("`options` must be an object", param="options")
    return options or {}


def _messages(fields: Mapping[str, object]) -> list[dict[str, object]]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("`messages` must be a list of messages", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(f"at most {MAX_MESSAGES:,} messages", param="messages")
    messages_read: list[dict[str, object]] = []
    called = ""
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if not isinstance(message, dict):
            raise BadRequest("a message must be an object", param=path)
        if call := message.get("tool_call"):
            called = f"call_{index}"
            messages_read.append(_calling(message, _call(call, called, path), path))
            continue
        role = _role(message, path)
        # A result belongs to the call before it: the protocol has no ids for calls.
        beside = {"tool_call_id": called} if role == "tool" and called else {}
        messages_read.append({"role": role, "content": _content(message, path), **beside})
    return messages_read


def _role(message: Mapping[str, object], path: str) -> str:
    role = message.get("role")
    if role is None and _OF_A_MODEL & set(message):
        return "assistant"
    if not isinstance(role, str) or role not in ROLES:
        known_names = ", ".join(ROLES)
        raise BadRequest(
            f"the role of a message must be one of: {known_names}", param=f"{path}.role"
        )
    return role


def _content(message: Mapping[str, object], path: str) -> object:
    """Return the text, or the parts of a message with attachments; later versions call `text` `content`."""
    text = message.get("text")
    if text is None:
        text = message.get("content")
    if text is not None and not isinstance(text, str | list):
        raise BadRequest("the text of a message must be a text", param=f"{path}.text")
    attachments = message.get("attachments") or []
    if not isinstance(attachments, list):
        raise BadRequest("`attachments` must be a list", param=f"{path}.attachments")
    if not attachments:
        return text or ""
    parts = text if isinstance(text, list) else [{"type": "text", "text": text}] if text else []
    return [
        *parts,
        *(
            _image(attachment, f"{path}.attachments[{index}]")
            for index, attachment in enumerate(attachments)
        ),
    ]


def _image(attachment: object, path: str) -> dict[str, object]:
    match attachment:
        case {"uri": str(uri), **rest}:
            kind = rest.get("mime-type") or rest.get("mime_type") or ""
        case _:
            raise BadRequest("an attachment must have a uri", param=path)
    media_type = kind if isinstance(kind, str) and kind else _kind_of(uri)
    if media_type and not media_type.startswith("image/"):
        raise BadRequest(f"attachments are images, not {media_type[:64]}", param=path)
    if not uri.startswith(("data:", "http:", "https:")):
        raise BadRequest("the uri of an attachment must be data: or http(s):", param=path)
    return {"type": "image_url", "image_url": {"url": uri}}


def _kind_of(uri: str) -> str:
    return (
        uri[len("data:") :].partition(",")[0].partition(";")[0] if uri.startswith("data:") else ""
    )


def _calling(
    message: Mapping[str, object], call: dict[str, object], path: str
) -> dict[str, object]:
    content = _content(message, path)
    return {"role": "assistant", "content": content or None, "tool_calls": [call]}


def _call(call: object, id_: str, path: str) -> dict[str, object]:
    match call:
        case {"name": str(name), **rest}:
            raw_arguments = rest.get("arguments")
        case _:
            raise BadRequest("a tool_call must have a name", param=f"{path}.tool_call")
    arguments: dict[str, object] = {}
    for named_arguments in (
        raw_arguments if isinstance(raw_arguments, list) else [raw_arguments or {}]
    ):
        if not isinstance(named_arguments, dict):
            raise BadRequest("arguments must be objects", param=f"{path}.tool_call.arguments")
        arguments |= named_arguments
    function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
    return {"id": id_, "type": "function", "function": function}
