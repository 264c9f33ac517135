"""Mapping of Anthropic's Messages requests to OpenAI's chats: every field is mapped, named as without effect, or refused.

Fields that require Anthropic's own services (tools that run there, containers, files) are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node.faces.anthropic.errors import field_error, fields_of
from node.faces.anthropic.messages import choice_of, messages_of, tools_of
from router.canonical.text import MAX_STOP_CHARACTERS, MAX_STOPS
from router.canonical.values import (
    dropped_names,
    read_choice,
    read_flag,
    read_integer,
    read_number,
    read_required_text,
    read_text,
    unread_fields,
)
from router.errors import BadRequest

MAX_MODEL_CHARACTERS = 513
"""`PROJECT/MODEL`, each at most 256 bytes."""

MAX_USER_CHARACTERS = 512
"""The longest name of a caller's own user, in `metadata.user_id`."""

READ = frozenset({
    "model", "messages", "max_tokens", "system", "stop_sequences", "stream", "temperature", "top_p", "top_k", "metadata",
    "thinking", "tools", "tool_choice", "output_config",
})  # fmt: skip
"""Fields that are read here."""

PASSED = ("project", "prompt_cache_key")
"""Fields of this node and of OpenAI that clients may add."""

BESIDE = frozenset({"cache_control", "service_tier", "inference_geo", "speed", "diagnostics"})
"""Fields about Anthropic's machines that do not change the answer."""

SERVICES = ("container", "mcp_servers", "user_profile_id", "workspace_id")
"""Fields that require something that Anthropic stores or runs."""

_MOST_TOKENS = 2**31 - 1
_THINKING = ("disabled", "enabled", "adaptive", "between_tools")
_EFFORTS = ("high", "low", "medium", "xhigh", "max")
# Every worker supports efforts up to `high`.
_HIGHEST = {"xhigh": "high", "max": "high"}


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A request in OpenAI's form. `thinks` is set where its caller wants to see the reasoning.

    `others` are the fields without effect; `unheard` names parts of fields without effect.
    """

    fields: Mapping[str, object]
    thinks: bool
    others: Mapping[str, object]
    unheard: tuple[str, ...]

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.fields["model"])

    @property
    def stream(self) -> bool:
        """Whether the caller wants a stream."""
        return self.fields.get("stream") is True

    @property
    def stops(self) -> Sequence[str]:
        """The strings before which the answer ends."""
        stops = self.fields.get("stop")
        return stops if isinstance(stops, list) else ()

    @property
    def begun(self) -> str:
        """The beginning of the answer where the caller prefilled it, else `""`."""
        match self.fields:
            case {"continue_final_message": True, "messages": [*_, {"content": str(text)}]}:
                return text
        return ""

    @property
    def dropped(self) -> tuple[str, ...]:
        """The names of what has no effect."""
        return (*dropped_names(self), *self.unheard)


def read(fields: Mapping[str, object], *, limited: bool = True) -> MessagesRequest:
    """Return a request; raise `BadRequest`, which names the field. Only a `limited` one must have `max_tokens`."""
    for name in SERVICES:
        if fields.get(name):
            raise BadRequest(f"`{name}` requires a service of Anthropic", param=name)
    if limited and fields.get("max_tokens") is None:
        raise BadRequest("`max_tokens` is required, at least 1", param="max_tokens")
    tools, unheard = tools_of(fields)
    thinks, budget = _thinking(fields)
    messages = messages_of(fields)
    body = {
        "model": read_required_text(fields, "model", MAX_MODEL_CHARACTERS),
        "messages": messages,
        "max_tokens": read_integer(fields, "max_tokens", 1, _MOST_TOKENS),
        "temperature": read_number(fields, "temperature", 0, 2),
        "top_p": read_number(fields, "top_p", 0, 1),
        "top_k": read_integer(fields, "top_k", 0, _MOST_TOKENS) or None,
        "stop": _stops(fields),
        "user": _user(fields),
        "tools": tools or None,
        **choice_of(fields, tools),
        **_output(fields),
        **_streaming(fields),
        **_begun(messages),
        **{name: fields.get(name) for name in PASSED},
    }
    return MessagesRequest(
        fields={name: value for name, value in body.items() if value is not None},
        thinks=thinks,
        others=unread_fields(fields, READ | BESIDE),
        unheard=(*unheard, *budget),
    )


def _stops(fields: Mapping[str, object]) -> list[str] | None:
    stops = fields.get("stop_sequences")
    if stops is None or stops == []:
        return None
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise field_error("stop_sequences", f"must be a list of at most {MAX_STOPS} texts")
    for index, stop in enumerate(stops):
        if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            raise field_error(
                f"stop_sequences[{index}]",
                f"must be a text of 1 to {MAX_STOP_CHARACTERS:,} characters",
            )
    return stops


def _user(fields: Mapping[str, object]) -> str | None:
    return read_text(fields_of(fields, "metadata"), "metadata.user_id", MAX_USER_CHARACTERS) or None


def _thinking(fields: Mapping[str, object]) -> tuple[bool, tuple[str, ...]]:
    """Return whether the caller wants the reasoning, and names without effect: the worker decides how much it reasons."""
    thinking = fields_of(fields, "thinking")
    kind = read_choice(thinking, "thinking.type", *_THINKING)
    shown = read_choice(thinking, "thinking.display", "summarized", "omitted")
    limited = read_integer(thinking, "thinking.budget_tokens", 1, _MOST_TOKENS) is not None
    is_wanted = kind != "disabled" and shown != "omitted"
    return is_wanted, ("thinking.budget_tokens",) if limited else ()


def _output(fields: Mapping[str, object]) -> dict[str, object]:
    config = fields_of(fields, "output_config")
    output: dict[str, object] = {}
    if config.get("output_config.effort") is not None:
        effort = read_choice(config, "output_config.effort", *_EFFORTS)
        output["reasoning_effort"] = _HIGHEST.get(effort, effort)
    match config.get("output_config.format"):
        case None:
            pass
        case {"type": "json_schema", "schema": dict(schema)}:
            named_schema = {"name": "answer", "schema": schema, "strict": True}
            output["response_format"] = {"type": "json_schema", "json_schema": named_schema}
        case _:
            raise field_error(
                "output_config.format", "must be of type json_schema, with its schema"
            )
    return output


def _streaming(fields: Mapping[str, object]) -> dict[str, object]:
    if not read_flag(fields, "stream"):
        return {}
    return {"stream": True, "stream_options": {"include_usage": True}}


def _begun(messages: list[dict[str, object]]) -> dict[str, object]:
    """Return the fields that make the answer continue the text with which the caller prefilled it, if any."""
    match messages[-1]:
        case {"role": "assistant", "tool_calls": _}:
            return {}
        case {"role": "assistant"}:
            # llama.cpp does so by itself, vLLM and SGLang need these fields.
            return {"continue_final_message": True, "add_generation_prompt": False}
    return {}
