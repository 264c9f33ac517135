"""Mapping of a request to TGI: what TGI lacks is dropped and named, or refused where dropping it would be misleading."""

from collections.abc import Mapping
from dataclasses import replace

from router.canonical import values
from router.canonical.text import Sampling, TextRequest
from router.errors import WorkerUnable
from router.openai.text_writer import refused
from router.requests import Kind
from router.translate.request import MappedRequest, refuse_tool_calls
from router.workers import Worker

CHAT_TOKENS = 1_024
"""Token limit of a chat without one: TGI would stop after 100, and refuses a limit that does not fit into its context."""

COMPLETION_TOKENS = 16
"""Token limit of a completion without one: OpenAI's own default."""

MAX_TGI_STOPS = 4
"""Stop strings that TGI accepts; the node itself looks for the rest."""

CHAT, WHOLE, STREAM = "v1/chat/completions", "generate", "generate_stream"
INFILL = "v1/completions"
"""The paths that requests are sent to."""

SUFFIX = "suffix"
"""The field with the text that follows a completion: only TGI's `/v1/completions` has it."""

OWN = ("logit_bias", "presence_penalty", "tool_prompt")
"""Fields of TGI's chats that mean something else in OpenAI's, or exist only in TGI: taken from callers of TGI's protocol."""

MAX_LIKELIEST = 5
"""Likeliest tokens that TGI reports for each position, by default."""

MAX_BEST_OF = 2
"""Texts of which TGI chooses the likeliest, by default."""

REGEX = "guided_regex"
"""The field by which servers of OpenAI's protocol take a regular expression that the text must match."""

TRUNCATE = "truncate_prompt_tokens"
"""The field by which vLLM takes how many of the prompt's last tokens count."""

_MOST_SEED = 2**63 - 1
_MOST_TOKENS = 2**31 - 1


def mapped(request: TextRequest, _: Worker) -> MappedRequest:
    """Translate a request to TGI; raise `WorkerUnable` if that would change the answer."""
    if request.stream and request.choices > 1:
        many = "n" if request.n > 1 else "prompt"
        raise WorkerUnable("TGI streams one choice for each request", param=many)
    chat = request.kind is Kind.CHAT
    sampling, unheard = _sampling(request.sampling, chat=chat)
    if request.others.get(SUFFIX) is not None:
        return _infills(request, sampling, unheard)
    bodies = _chats(request, sampling) if chat else _natives(request, sampling)
    tools = bool(request.tools) and request.tool_choice != "none"
    streamed = request.stream and not tools
    path = CHAT if chat else STREAM if streamed else WHOLE
    translated = _translated_fields(request)
    lost = [name for name in values.dropped_names(request) if name not in translated]
    return MappedRequest(path, bodies, (*unheard, *lost), streamed)


def beside(mapped: MappedRequest, fields: Mapping[str, object]) -> MappedRequest:
    """Add to a chat the fields of TGI's own that its caller set."""
    if mapped.path != CHAT:
        return mapped
    heard = {name: fields[name] for name in OWN if name in fields}
    bodies = tuple({**body, **heard} for body in mapped.bodies)
    lost = tuple(name for name in mapped.dropped if name not in heard)
    return replace(mapped, bodies=bodies, dropped=lost, heard=tuple(heard))


def _infills(
    request: TextRequest, sampling: Mapping[str, object], unheard: tuple[str, ...]
) -> MappedRequest:
    """Translate a completion between a prompt and the text that follows it."""
    suffix = request.others[SUFFIX]
    if not isinstance(suffix, str):
        raise refused(f"`{SUFFIX}` must be a text", SUFFIX)
    if _grammar(request) is not None:
        raise WorkerUnable("TGI does not support `response_format` with a suffix", param=SUFFIX)
    renamed = {"max_new_tokens": "max_tokens"}
    fields = {renamed.get(name, name): value for name, value in sampling.items()}
    lost = [name for name in ("top_k", "typical_p") if fields.pop(name, None) is not None]
    fields |= {"model": "tgi", "stream": request.stream, SUFFIX: suffix}
    if not fields.pop("do_sample"):
        fields["temperature"] = 0.0
    if request.stop:
        fields["stop"] = list(request.stop[:MAX_TGI_STOPS])
    bodies = tuple(
        {**fields, "prompt": [request.prompts[choice // request.n]], **_seeded(request, choice)}
        for choice in range(request.choices)
    )
    lost += [name for name in values.dropped_names(request) if name != SUFFIX]
    return MappedRequest(INFILL, bodies, (*unheard, *lost), request.stream)


def _translated_fields(request: TextRequest) -> set[str]:
    """Return the fields that are translated beside those which every protocol has."""
    fields = {REGEX} if request.kind is Kind.CHAT else {REGEX, TRUNCATE}
    if request.logprobs is not None:
        fields |= {"logprobs", "top_logprobs"}
        if request.logprobs > MAX_LIKELIEST:
            fields.remove("top_logprobs" if request.kind is Kind.CHAT else "logprobs")
    return fields | {"best_of"} if _best_of(request) else fields


def _best_of(request: TextRequest) -> int:
    """Return `best_of`; 0 where TGI cannot choose: with several choices, in a stream, or without random sampling."""
    sampling = request.sampling
    chosen = request.kind is Kind.COMPLETION and request.choices == 1 and not request.stream
    drawn = sampling.seed is None and sampling.temperature != 0 and sampling.top_p != 0
    match request.others.get("best_of"):
        case int(count) if 1 < count <= MAX_BEST_OF and chosen and drawn:
            return count
    return 0


def _sampling(sampling: Sampling, *, chat: bool) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the parameters by TGI's names, and the names of those that have no effect."""
    limit = sampling.max_tokens or (CHAT_TOKENS if chat else COMPLETION_TOKENS)
    greedy = sampling.temperature == 0 or sampling.top_p == 0
    fields: dict[str, object] = {"max_tokens" if chat else "max_new_tokens": limit}
    fields["frequency_penalty"] = sampling.frequency_penalty
    if not greedy:
        fields |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
    extended = {
        "top_k": sampling.top_k,
        "typical_p": sampling.typical_p or None,
        "repetition_penalty": sampling.repetition_penalty,
    }
    unheard = {"min_p": sampling.min_p, "presence_penalty": sampling.presence_penalty}
    if chat:
        unheard |= extended
        fields |= {"temperature": 0.0} if greedy else {}
    else:
        # TGI's default is greedy, OpenAI's is not.
        fields |= extended | {"do_sample": not greedy}
    dropped = tuple(sorted(name for name, value in unheard.items() if value is not None))
    return {name: value for name, value in fields.items() if value is not None}, dropped


def _seeded(request: TextRequest, choice: int) -> dict[str, object]:
    """Return the seed of one choice: with the same seed all choices would be the same text."""
    if request.sampling.seed is None:
        return {}
    # TGI's seeds are unsigned, and it takes 0 as no seed.
    return {"seed": (request.sampling.seed + choice) & _MOST_SEED or _MOST_SEED}


def _natives(
    request: TextRequest, sampling: Mapping[str, object]
) -> tuple[Mapping[str, object], ...]:
    parameters: dict[str, object] = {**sampling, "details": True, "return_full_text": False}
    if request.stop:
        parameters["stop"] = list(request.stop[:MAX_TGI_STOPS])
    if best_of := _best_of(request):
        parameters["best_of"] = best_of
    if (count := request.others.get(TRUNCATE)) is not None:
        parameters["truncate"] = _tokens(count)
    if request.logprobs:
        parameters["top_n_tokens"] = min(request.logprobs, MAX_LIKELIEST)
    if (form := _grammar(request)) is not None:
        parameters["grammar"] = form
    return tuple(
        {
            "inputs": request.prompts[choice // request.n],
            "parameters": parameters | _seeded(request, choice),
        }
        for choice in range(request.choices)
    )


def _chats(
    request: TextRequest, sampling: Mapping[str, object]
) -> tuple[Mapping[str, object], ...]:
    # TGI takes any other model name as that of an adapter.
    body: dict[str, object] = {"model": "tgi", "messages": list(map(_message, request.messages))}
    body |= {"stream": request.stream, **sampling}
    if request.stop:
        body["stop"] = list(request.stop[:MAX_TGI_STOPS])
    if request.logprobs is not None:
        body["logprobs"] = True
        body |= {"top_logprobs": min(request.logprobs, MAX_LIKELIEST)} if request.logprobs else {}
    if (form := _grammar(request)) is not None:
        body["response_format"] = form
    if request.tools and request.tool_choice != "none":
        body |= {"stream": False, "tools": list(map(_tool, request.tools))}
        if request.tool_choice == "named":
            body["tool_choice"] = {"function": {"name": request.tool_name}}
    # The long parts are shared between the choices, of which there may be many.
    return tuple(body | _seeded(request, choice) for choice in range(request.choices))


def _grammar(request: TextRequest) -> dict[str, object] | None:
    """Return the grammar that the text must match, `None` without one; raise `WorkerRejected` for an invalid one."""
    if request.schema is not None:
        return {"type": "json", "value": request.schema or {"type": "object"}}
    match request.others.get(REGEX):
        case None:
            return None
        case str(pattern):
            return {"type": "regex", "value": pattern}
    raise refused(f"`{REGEX}` must be a regular expression", REGEX)


def _tool(function: Mapping[str, object]) -> dict[str, object]:
    fields = {
        "name": function["name"],
        "arguments": function.get("parameters") or {"type": "object"},
    }
    if isinstance(description := function.get("description"), str):
        fields["description"] = description
    return {"type": "function", "function": fields}


def _message(message: Mapping[str, object]) -> dict[str, object]:
    refuse_tool_calls("TGI", message)
    content = message.get("content")
    converted = content if isinstance(content, str) else [_part(p) for p in _list(content)] or ""
    name = message.get("name")
    return {"role": message["role"], "content": converted} | (
        {"name": name} if isinstance(name, str) else {}
    )


def _part(part: object) -> dict[str, object]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return {"type": "image_url", "image_url": {"url": url}}
    raise WorkerUnable("TGI supports only texts and images", param="messages")


def _tokens(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_TOKENS:
        raise refused(f"`{TRUNCATE}` must be from 1 to {_MOST_TOKENS}", TRUNCATE)
    return value


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
