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


def mapped(asked: TextRequest, _: Worker) -> MappedRequest:
    """Translate a request to TGI; raise `WorkerUnable` if that would change the answer."""
    if asked.stream and asked.choices > 1:
        many = "n" if asked.n > 1 else "prompt"
        raise WorkerUnable("TGI streams one choice for each request", param=many)
    chat = asked.kind is Kind.CHAT
    sampling, unheard = _sampling(asked.sampling, chat=chat)
    if asked.others.get(SUFFIX) is not None:
        return _infills(asked, sampling, unheard)
    bodies = _chats(asked, sampling) if chat else _natives(asked, sampling)
    tools = bool(asked.tools) and asked.tool_choice != "none"
    streamed = asked.stream and not tools
    path = CHAT if chat else STREAM if streamed else WHOLE
    heard = _translated_fields(asked)
    lost = [name for name in values.dropped_names(asked) if name not in heard]
    return MappedRequest(path, bodies, (*unheard, *lost), streamed)


def beside(mapped: MappedRequest, own: Mapping[str, object]) -> MappedRequest:
    """Add to a chat the fields of TGI's own that its caller set."""
    if mapped.path != CHAT:
        return mapped
    heard = {name: own[name] for name in OWN if name in own}
    bodies = tuple({**body, **heard} for body in mapped.bodies)
    lost = tuple(name for name in mapped.dropped if name not in heard)
    return replace(mapped, bodies=bodies, dropped=lost, heard=tuple(heard))


def _infills(
    asked: TextRequest, sampling: Mapping[str, object], unheard: tuple[str, ...]
) -> MappedRequest:
    """Translate a completion between a prompt and the text that follows it."""
    suffix = asked.others[SUFFIX]
    if not isinstance(suffix, str):
        raise refused(f"`{SUFFIX}` must be a text", SUFFIX)
    if _grammar(asked) is not None:
        raise WorkerUnable("TGI does not support `response_format` with a suffix", param=SUFFIX)
    renamed = {"max_new_tokens": "max_tokens"}
    said = {renamed.get(name, name): value for name, value in sampling.items()}
    lost = [name for name in ("top_k", "typical_p") if said.pop(name, None) is not None]
    said |= {"model": "tgi", "stream": asked.stream, SUFFIX: suffix}
    if not said.pop("do_sample"):
        said["temperature"] = 0.0
    if asked.stop:
        said["stop"] = list(asked.stop[:MAX_TGI_STOPS])
    bodies = tuple(
        {**said, "prompt": [asked.prompts[choice // asked.n]], **_seeded(asked, choice)}
        for choice in range(asked.choices)
    )
    lost += [name for name in values.dropped_names(asked) if name != SUFFIX]
    return MappedRequest(INFILL, bodies, (*unheard, *lost), asked.stream)


def _translated_fields(asked: TextRequest) -> set[str]:
    """Return the fields that are translated beside those which every protocol has."""
    heard = {REGEX} if asked.kind is Kind.CHAT else {REGEX, TRUNCATE}
    if asked.logprobs is not None:
        heard |= {"logprobs", "top_logprobs"}
        if asked.logprobs > MAX_LIKELIEST:
            heard.remove("top_logprobs" if asked.kind is Kind.CHAT else "logprobs")
    return heard | {"best_of"} if _best_of(asked) else heard


def _best_of(asked: TextRequest) -> int:
    """Return `best_of`; 0 where TGI cannot choose: with several choices, in a stream, or without random sampling."""
    sampling = asked.sampling
    chosen = asked.kind is Kind.COMPLETION and asked.choices == 1 and not asked.stream
    drawn = sampling.seed is None and sampling.temperature != 0 and sampling.top_p != 0
    match asked.others.get("best_of"):
        case int(count) if 1 < count <= MAX_BEST_OF and chosen and drawn:
            return count
    return 0


def _sampling(given: Sampling, *, chat: bool) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the parameters by TGI's names, and the names of those that have no effect."""
    limit = given.max_tokens or (CHAT_TOKENS if chat else COMPLETION_TOKENS)
    greedy = given.temperature == 0 or given.top_p == 0
    said: dict[str, object] = {"max_tokens" if chat else "max_new_tokens": limit}
    said["frequency_penalty"] = given.frequency_penalty
    if not greedy:
        said |= {"temperature": given.temperature, "top_p": given.top_p}
    extended = {
        "top_k": given.top_k,
        "typical_p": given.typical_p or None,
        "repetition_penalty": given.repetition_penalty,
    }
    unheard = {"min_p": given.min_p, "presence_penalty": given.presence_penalty}
    if chat:
        unheard |= extended
        said |= {"temperature": 0.0} if greedy else {}
    else:
        # TGI's default is greedy, OpenAI's is not.
        said |= extended | {"do_sample": not greedy}
    dropped = tuple(sorted(name for name, value in unheard.items() if value is not None))
    return {name: value for name, value in said.items() if value is not None}, dropped


def _seeded(asked: TextRequest, choice: int) -> dict[str, object]:
    """Return the seed of one choice: with the same seed all choices would be the same text."""
    if asked.sampling.seed is None:
        return {}
    # TGI's seeds are unsigned, and it takes 0 as no seed.
    return {"seed": (asked.sampling.seed + choice) & _MOST_SEED or _MOST_SEED}


def _natives(
    asked: TextRequest, sampling: Mapping[str, object]
) -> tuple[Mapping[str, object], ...]:
    said: dict[str, object] = {**sampling, "details": True, "return_full_text": False}
    if asked.stop:
        said["stop"] = list(asked.stop[:MAX_TGI_STOPS])
    if best_of := _best_of(asked):
        said["best_of"] = best_of
    if (count := asked.others.get(TRUNCATE)) is not None:
        said["truncate"] = _tokens(count)
    if asked.logprobs:
        said["top_n_tokens"] = min(asked.logprobs, MAX_LIKELIEST)
    if (form := _grammar(asked)) is not None:
        said["grammar"] = form
    return tuple(
        {"inputs": asked.prompts[choice // asked.n], "parameters": said | _seeded(asked, choice)}
        for choice in range(asked.choices)
    )


def _chats(asked: TextRequest, sampling: Mapping[str, object]) -> tuple[Mapping[str, object], ...]:
    # TGI takes any other model name as that of an adapter.
    said: dict[str, object] = {"model": "tgi", "messages": list(map(_message, asked.messages))}
    said |= {"stream": asked.stream, **sampling}
    if asked.stop:
        said["stop"] = list(asked.stop[:MAX_TGI_STOPS])
    if asked.logprobs is not None:
        said["logprobs"] = True
        said |= {"top_logprobs": min(asked.logprobs, MAX_LIKELIEST)} if asked.logprobs else {}
    if (form := _grammar(asked)) is not None:
        said["response_format"] = form
    if asked.tools and asked.tool_choice != "none":
        said |= {"stream": False, "tools": list(map(_tool, asked.tools))}
        if asked.tool_choice == "named":
            said["tool_choice"] = {"function": {"name": asked.tool_name}}
    # The long parts are shared between the choices, of which there may be many.
    return tuple(said | _seeded(asked, choice) for choice in range(asked.choices))


def _grammar(asked: TextRequest) -> dict[str, object] | None:
    """Return the grammar that the text must match, `None` without one; raise `WorkerRejected` for an invalid one."""
    if asked.schema is not None:
        return {"type": "json", "value": asked.schema or {"type": "object"}}
    match asked.others.get(REGEX):
        case None:
            return None
        case str(pattern):
            return {"type": "regex", "value": pattern}
    raise refused(f"`{REGEX}` must be a regular expression", REGEX)


def _tool(function: Mapping[str, object]) -> dict[str, object]:
    said = {"name": function["name"], "arguments": function.get("parameters") or {"type": "object"}}
    if isinstance(words := function.get("description"), str):
        said["description"] = words
    return {"type": "function", "function": said}


def _message(message: Mapping[str, object]) -> dict[str, object]:
    refuse_tool_calls("TGI", message)
    content = message.get("content")
    said = content if isinstance(content, str) else [_part(p) for p in _list(content)] or ""
    name = message.get("name")
    return {"role": message["role"], "content": said} | (
        {"name": name} if isinstance(name, str) else {}
    )


def _part(part: object) -> dict[str, object]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return {"type": "image_url", "image_url": {"url": url}}
    raise WorkerUnable("TGI supports only texts and images", param="messages")


def _tokens(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= _MOST_TOKENS:
        raise refused(f"`{TRUNCATE}` must be from 1 to {_MOST_TOKENS}", TRUNCATE)
    return given


def _list(given: object) -> list[object]:
    return given if isinstance(given, list) else []
