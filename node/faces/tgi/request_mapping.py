"""Mapping of TGI requests to OpenAI's: each parameter is checked against TGI's bounds, and put into OpenAI's body.

TGI's defaults, 100 tokens and greedy decoding, are set explicitly, because OpenAI's differ.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite

import orjson

from router.canonical.values import read_flag, read_integer
from router.errors import BadRequest

DEFAULT_TOKENS = 100
"""The most tokens of a text whose request sets no limit."""

MAX_STOPS = 4
"""The most stop strings of one request."""

MAX_BEST_OF = 1
"""Largest `best_of` for workers of other protocols: OpenAI's form does not tell which text is the best."""

MAX_LIKELIEST = 5
"""The most alternatives that are returned for each token of a text."""

_MOST_TOKENS = 2**31 - 1
_MOST_SEED = 2**63 - 1
_TGIS_OWN = ("decoder_input_details", "watermark")


@dataclass(frozen=True, slots=True)
class TgiRequest:
    """A request for a text. `fields` are OpenAI's fields for a completion, without the model and `stream`.

    `likeliest` is the number of alternatives to return for each token. `needs` names a parameter that only workers of TGI's
    protocol know.
    """

    inputs: str
    fields: Mapping[str, object]
    stops: bool
    seed: int | None
    full_text: bool
    details: bool
    likeliest: int
    needs: str = ""


def read(payload: Mapping[str, object]) -> TgiRequest:
    """Return a request from TGI's `GenerateRequest`; raise `BadRequest`, which names the field. Other fields are ignored."""
    inputs = inputs_of(payload)
    parameters = payload.get("parameters")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise BadRequest("`parameters` must be an object", param="parameters")
    limit = read_integer(parameters, "max_new_tokens", 1, _MOST_TOKENS)
    stop, seed = _stop(parameters), read_integer(parameters, "seed", 0, 2**64 - 1)
    sampling, sampled = _sampling(parameters)
    fields: dict[str, object] = {"prompt": inputs, "max_tokens": limit or DEFAULT_TOKENS}
    fields |= sampling
    fields |= {"stop": stop} if stop else {}
    # OpenAI's seed is signed.
    fields |= {} if seed is None else {"seed": seed & _MOST_SEED}
    fields |= _truncated(parameters, inputs) | grammar(parameters.get("grammar"), "grammar")
    details, likeliest = read_flag(parameters, "details"), _likeliest(parameters)
    # Reporting a token costs some workers as much as the token itself: it is requested only where the caller asks for it.
    fields |= {"logprobs": max(1, likeliest)} if details or likeliest else {}
    return TgiRequest(
        inputs=inputs,
        fields=fields,
        stops=bool(stop),
        seed=seed if sampled else None,
        full_text=bool(read_flag(parameters, "return_full_text")),
        # The specification's default is true.
        details=details is not False,
        likeliest=likeliest,
        needs=_needs(parameters),
    )


def inputs_of(fields: Mapping[str, object]) -> str:
    """Return the text to continue or to tokenize; raise `BadRequest`."""
    inputs = fields.get("inputs")
    if not isinstance(inputs, str) or not inputs:
        raise BadRequest("`inputs` must be a text that is not empty", param="inputs")
    return inputs


def grammar(value: object, param: str) -> dict[str, object]:
    """Return a grammar as OpenAI's field, or as the common field of servers for a regex; raise `BadRequest`."""
    match value:
        case None:
            return {}
        case {"type": "regex", "value": str(pattern)} if pattern:
            return {"guided_regex": pattern}
        case {"type": "json", "value": dict(schema)} if schema:
            return _schema(schema)
        case {"type": "json", "value": str(text)}:
            with suppress(orjson.JSONDecodeError):
                return grammar({"type": "json", "value": _object(text)}, param)
    raise BadRequest(f"`{param}` must be a JSON schema (`json`) or a `regex`", param=param)


def _object(text: str) -> object:
    parsed = orjson.loads(text)
    # Only an object: a JSON string could contain JSON again, without end.
    return parsed if isinstance(parsed, dict) else None


def _schema(schema: Mapping[str, object]) -> dict[str, object]:
    named_schema = {"name": "answer", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named_schema}}


def _needs(parameters: Mapping[str, object]) -> str:
    """Return the name of a parameter without an equivalent in OpenAI's form, else `""`; raise `BadRequest` for wrong values."""
    names = [name for name in _TGIS_OWN if read_flag(parameters, name)]
    if (read_integer(parameters, "best_of", 1, _MOST_TOKENS) or 1) > MAX_BEST_OF:
        names.append("best_of")
    match parameters.get("adapter_id"):
        case None:
            pass
        case str():
            names.append("adapter_id")
        case _:
            raise BadRequest("`adapter_id` must be a text", param="adapter_id")
    return names[0] if names else ""


def _likeliest(parameters: Mapping[str, object]) -> int:
    count = read_integer(parameters, "top_n_tokens", 0, _MOST_TOKENS) or 0
    if count > MAX_LIKELIEST:
        raise BadRequest(f"`top_n_tokens` is at most {MAX_LIKELIEST} here", param="top_n_tokens")
    return count


def _sampling(parameters: Mapping[str, object]) -> tuple[dict[str, object], bool]:
    """Return OpenAI's fields, and whether the text is sampled: TGI samples with `do_sample` or any sampling parameter."""
    temperature = _number(parameters, "temperature")
    top_p = _number(parameters, "top_p", limit=1, usual=1)
    typical_p = _number(parameters, "typical_p", limit=1, usual=1)
    top_k = read_integer(parameters, "top_k", 1, _MOST_TOKENS)
    drawn = {"top_p": top_p, "top_k": top_k, "typical_p": typical_p}
    penalties = {
        "repetition_penalty": _number(parameters, "repetition_penalty", usual=1),
        "frequency_penalty": _number(parameters, "frequency_penalty", -2, limit=2, usual=0),
    }
    is_drawn = temperature not in (None, 1) or any(value is not None for value in drawn.values())
    sampled = bool(read_flag(parameters, "do_sample")) or is_drawn
    if not sampled:
        drawn = {}
    sampling = {name: value for name, value in (drawn | penalties).items() if value is not None}
    return {"temperature": (temperature or 1.0) if sampled else 0.0, **sampling}, sampled


def _number(
    parameters: Mapping[str, object],
    name: str,
    above: float = 0,
    *,
    limit: float | None = None,
    usual: float | None = None,
) -> float | None:
    """Return a number above `above` and at most `limit`, `None` if missing or `usual` (no effect); raise `BadRequest`."""
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise BadRequest(f"`{name}` must be a number", param=name)
    if value <= above or (limit is not None and value > limit):
        bound = "" if limit is None else f" and at most {limit:g}"
        raise BadRequest(f"`{name}` must be greater than {above:g}{bound}", param=name)
    return None if value == usual else float(value)


def _stop(parameters: Mapping[str, object]) -> list[str]:
    stops = parameters.get("stop")
    if stops is None:
        return []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise BadRequest("`stop` must be a list of texts", param="stop")
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"`stop` has at most {MAX_STOPS} texts", param="stop")
    return [stop for stop in stops if stop]


def _truncated(parameters: Mapping[str, object], inputs: str) -> dict[str, object]:
    """Return vLLM's field for `truncate`, for workers that know it; nothing if the text has fewer bytes, so fewer tokens."""
    limit = read_integer(parameters, "truncate", 1, _MOST_TOKENS)
    if limit is None or len(inputs.encode()) < limit:
        return {}
    return {"truncate_prompt_tokens": limit}
