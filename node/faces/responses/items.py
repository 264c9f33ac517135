"""Mapping of a Responses input to the messages of a chat: each item is checked, and an error names its place."""

from collections.abc import Mapping, Sequence

from router.canonical.values import read_list, read_required_text, read_text
from router.errors import BadRequest, WorkerUnable

MAX_ITEMS = 10_000
"""The most items of one input: as many as a chat may have messages."""

MAX_PARTS = 10_000
"""The most parts of one message."""

MAX_ITEM_ID_CHARACTERS = 512
"""The longest id of a call, and the longest name of a function."""

MAX_TEXT_CHARACTERS = 2**28
"""The longest text; bodies are limited to less."""

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_DETAILS = frozenset({"auto", "low", "high"})
_TEXTS = frozenset({"input_text", "output_text", "text"})
_NOT_STORED = "this node stores nothing: send complete items, as clients do with `store: false`"


def messages(fields: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the conversation so far as the messages of a chat; raise `BadRequest` or `WorkerUnable`."""
    talk = _ChatBuilder()
    if instructions := read_text(fields, "instructions", MAX_TEXT_CHARACTERS):
        talk.say("system", instructions)
    input_value = fields.get("input")
    if isinstance(input_value, str):
        talk.say("user", input_value)
        return talk.messages()
    if not isinstance(input_value, list):
        raise BadRequest("`input` must be a text or a list of items", param="input")
    for index, item in enumerate(read_list(fields, "input", MAX_ITEMS)):
        talk.add(item, f"input[{index}]")
    if not (chat_messages := talk.messages()):
        raise BadRequest("`input` contains nothing for a model", param="input")
    return chat_messages


def in_chat(name: str, namespace: str) -> str:
    """Return the name of a function in a chat, which has no namespaces."""
    return f"{namespace}__{name}" if namespace else name


class _ChatBuilder:
    """Builder of a chat, item by item."""

    def __init__(self) -> None:
        self._system: list[str] = []
        self._messages: list[dict[str, object]] = []
        self._called_ids: set[str] = set()
        self._calls: list[object] = []
        self._images: list[Mapping[str, object]] = []

    def messages(self) -> list[dict[str, object]]:
        """Return all messages. Leading system messages become one, because many templates support no second."""
        self._add_media()
        if not self._system:
            return self._messages
        return [{"role": "system", "content": "\n\n".join(self._system)}, *self._messages]

    def say(self, role: str, content: object) -> None:
        """Add a message."""
        self._add_media()
        if role == "system" and not self._messages:
            self._system.append(str(content))
        else:
            self._messages.append({"role": role, "content": content})

    def add(self, item: object, path: str) -> None:
        """Add an item of any type; raise `BadRequest` or `WorkerUnable`."""
        if not isinstance(item, dict):
            raise BadRequest("an item must be an object", param=path)
        match item.get("type") or ("message" if "role" in item else None):
            case "message":
                self._message(item, path)
            case "function_call":
                self._call(item, path)
            case "function_call_output":
                self._answer(item, path)
            case "reasoning":
                # A chat has no field for the reasoning of earlier turns, and templates omit it.
                return
            case "item_reference":
                raise WorkerUnable(_NOT_STORED, param=path)
            case str(kind):
                raise WorkerUnable(
                    f"items of type {kind[:64]!r} are not supported", param=f"{path}.type"
                )
            case _:
                raise BadRequest("an item must have a type, or a role", param=f"{path}.type")

    def _message(self, item: Mapping[str, object], path: str) -> None:
        raw_role = item.get("role")
        role = _ROLES.get(raw_role) if isinstance(raw_role, str) else None
        if role is None:
            raise BadRequest(f"`role` must be one of: {', '.join(_ROLES)}", param=f"{path}.role")
        parts = _parts(item.get("content"), f"{path}.content")
        if role == "user":
            self.say(role, _plain(parts))
        else:
            self.say(role, _text_of(parts, f"{path}.content"))

    def _call(self, item: Mapping[str, object], path: str) -> None:
        call = {
            "id": _of(item, "call_id", path),
            "type": "function",
            "function": {
                "name": in_chat(_of(item, "name", path), _of(item, "namespace", path, least=0)),
                "arguments": _text(item.get("arguments"), f"{path}.arguments"),
            },
        }
        self._called_ids.add(str(call["id"]))
        self._add_media()
        # Text and calls of one turn are one message of a chat.
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._messages.append({"role": "assistant", "content": None})
        message = self._messages[-1]
        if "tool_calls" not in message:
            message["tool_calls"] = self._calls = []
        self._calls.append(call)

    def _answer(self, item: Mapping[str, object], path: str) -> None:
        call = _of(item, "call_id", path)
        if call not in self._called_ids:
            raise BadRequest("no function_call before it has this call_id", param=f"{path}.call_id")
        parts = _parts(item.get("output"), f"{path}.output")
        texts = [str(part["text"]) for part in parts if part["type"] == "text"]
        self._messages.append({"role": "tool", "tool_call_id": call, "content": "".join(texts)})
        self._images += [part for part in parts if part["type"] != "text"]

    def _add_media(self) -> None:
        """Add what tools returned besides texts, as a user message after their answers: only users may send it in a chat."""
        if self._images:
            self._messages.append({"role": "user", "content": self._images})
            self._images = []


def _of(item: Mapping[str, object], name: str, path: str, *, least: int = 1) -> str:
    try:
        return (read_required_text if least else read_text)(item, name, MAX_ITEM_ID_CHARACTERS)
    except BadRequest as error:
        raise BadRequest(str(error), param=f"{path}.{name}") from error


def _parts(content: object, path: str) -> list[dict[str, object]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or len(content) > MAX_PARTS:
        raise BadRequest(
            f"this must be a text, or a list of at most {MAX_PARTS:,} parts", param=path
        )
    return [_part(part, f"{path}[{number}]") for number, part in enumerate(content)]


def _part(part: object, path: str) -> dict[str, object]:
    if not isinstance(part, dict) or not isinstance(kind := part.get("type"), str):
        raise BadRequest("a part must be an object with a type", param=path)
    if kind in _TEXTS:
        return {"type": "text", "text": _text(part.get("text"), f"{path}.text")}
    match kind:
        case "refusal":
            return {"type": "text", "text": _text(part.get("refusal"), f"{path}.refusal")}
        case "input_image":
            return _image(part, path)
        case "input_audio":
            return _audio(part.get("input_audio"), f"{path}.input_audio")
    raise WorkerUnable(f"parts of type {kind[:64]!r} are not supported", param=f"{path}.type")


def _image(part: Mapping[str, object], path: str) -> dict[str, object]:
    if part.get("file_id"):
        raise WorkerUnable("files are not stored here; send an image_url", param=f"{path}.file_id")
    url = _text(part.get("image_url"), f"{path}.image_url")
    image: dict[str, object] = {"url": url}
    # A chat supports fewer values of `detail`.
    if (detail := part.get("detail")) in _DETAILS:
        image["detail"] = detail
    return {"type": "image_url", "image_url": image}


def _audio(audio: object, path: str) -> dict[str, object]:
    match audio:
        case {"data": str(data), "format": str(form)}:
            return {"type": "input_audio", "input_audio": {"data": data, "format": form}}
    raise BadRequest("audio must have `data` and `format`", param=path)


def _plain(parts: Sequence[Mapping[str, object]]) -> object:
    """Return a text instead of parts where there is only one text: some templates do not support parts."""
    match parts:
        case [{"type": "text", "text": only}]:
            return only
    return parts


def _text_of(parts: Sequence[Mapping[str, object]], path: str) -> str:
    for number, part in enumerate(parts):
        if part["type"] != "text":
            raise WorkerUnable("only texts are supported here", param=f"{path}[{number}].type")
    return "".join(str(part["text"]) for part in parts)


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise BadRequest("this must be a text", param=path)
    return value
