"""Mapping of TGI requests to OpenAI's: each parameter is checked against TGI's bounds, and said in OpenAI's body.

What TGI does by default is said aloud, for OpenAI's defaults are others: 100 tokens, greedily.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite

import orjson

from router.canonical.values import flag, whole
from router.errors import BadRequest

DEFAULT_TOKENS = 100
"""What a text without a limit may take."""

MAX_STOPS = 4
"""Stop strings of one request."""

MAX_BEST_OF = 1
"""Texts from which the best is chosen by workers of other protocols: which one that is, OpenAI's form does not tell."""

MAX_LIKELIEST = 5
"""Tokens that are told for one place in a text, besides the one that was drawn."""

_MOST_TOKENS = 2**31 - 1
_MOST_SEED = 2**63 - 1
_TGIS_OWN = ("decoder_input_details", "watermark")


@dataclass(frozen=True, slots=True)
class TgiRequest:
    """A request for a text. `fields` are OpenAI's for a completion, but for the model and whether it streams.

    `likeliest` is how many tokens are told for each place in the text, besides the one that was drawn. `needs` names a
    parameter that workers of TGI's own protocol alone know.
    """

    inputs: str
    fields: Mapping[str, object]
    stops: bool
    seed: int | None
    full_text: bool
    details: bool
    likeliest: int
    needs: str = ""


def read(given: Mapping[str, object]) -> TgiRequest:
    """Read TGI's `GenerateRequest`; raise `BadRequest`, which names the field. What TGI does not know is not read."""
    inputs = inputs_of(given)
    parameters = given.get("parameters")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise BadRequest("`parameters` must be an object", param="parameters")
    limit = whole(parameters, "max_new_tokens", 1, _MOST_TOKENS)
    stop, seed = _stop(parameters), whole(parameters, "seed", 0, 2**64 - 1)
    sampling, sampled = _sampling(parameters)
    fields: dict[str, object] = {"prompt": inputs, "max_tokens": limit or DEFAULT_TOKENS}
    fields |= sampling
    fields |= {"stop": stop} if stop else {}
    # OpenAI's has a sign.
    fields |= {} if seed is None else {"seed": seed & _MOST_SEED}
    fields |= _truncated(parameters, inputs) | grammar(parameters.get("grammar"), "grammar")
    details, likeliest = flag(parameters, "details"), _likeliest(parameters)
    # To tell of each token costs some workers as much as the token: only who says it aloud is told.
    fields |= {"logprobs": max(1, likeliest)} if details or likeliest else {}
    return TgiRequest(
        inputs=inputs,
        fields=fields,
        stops=bool(stop),
        seed=seed if sampled else None,
        full_text=bool(flag(parameters, "return_full_text")),
        # The specification's default is true.
        details=details is not False,
        likeliest=likeliest,
        needs=_needs(parameters),
    )


def inputs_of(given: Mapping[str, object]) -> str:
    """Return the text that is to be continued, or to be cut into tokens; raise `BadRequest`."""
    inputs = given.get("inputs")
    if not isinstance(inputs, str) or not inputs:
        raise BadRequest("`inputs` must be a text that is not empty", param="inputs")
    return inputs


def grammar(given: object, param: str) -> dict[str, object]:
    """Say in OpenAI's field, or the one that servers have for it, which form a text must keep; raise `BadRequest`."""
    match given:
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
    # A text in a text in a text would be no end of them.
    return parsed if isinstance(parsed, dict) else None


def _schema(schema: Mapping[str, object]) -> dict[str, object]:
    named = {"name": "answer", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _needs(parameters: Mapping[str, object]) -> str:
    """Name what OpenAI's form has no word for, nothing where it has all; raise `BadRequest` for what is none of TGI's."""
    wanted = [name for name in _TGIS_OWN if flag(parameters, name)]
    if (whole(parameters, "best_of", 1, _MOST_TOKENS) or 1) > MAX_BEST_OF:
        wanted.append("best_of")
    match parameters.get("adapter_id"):
        case None:
            pass
        case str():
            wanted.append("adapter_id")
        case _:
            raise BadRequest("`adapter_id` must be a text", param="adapter_id")
    return wanted[0] if wanted else ""


def _likeliest(parameters: Mapping[str, object]) -> int:
    count = whole(parameters, "top_n_tokens", 0, _MOST_TOKENS) or 0
    if count > MAX_LIKELIEST:
        raise BadRequest(f"`top_n_tokens` is at most {MAX_LIKELIEST} here", param="top_n_tokens")
    return count


def _sampling(parameters: Mapping[str, object]) -> tuple[dict[str, object], bool]:
    """Return OpenAI's fields, and whether anything is drawn by chance: TGI does so when told to, or how."""
    temperature = _number(parameters, "temperature")
    top_p = _number(parameters, "top_p", most=1, usual=1)
    typical_p = _number(parameters, "typical_p", most=1, usual=1)
    top_k = whole(parameters, "top_k", 1, _MOST_TOKENS)
    drawn = {"top_p": top_p, "top_k": top_k, "typical_p": typical_p}
    penalties = {
        "repetition_penalty": _number(parameters, "repetition_penalty", usual=1),
        "frequency_penalty": _number(parameters, "frequency_penalty", -2, most=2, usual=0),
    }
    told = temperature not in (None, 1) or any(value is not None for value in drawn.values())
    sampled = bool(flag(parameters, "do_sample")) or told
    if not sampled:
        drawn = {}
    said = {name: value for name, value in (drawn | penalties).items() if value is not None}
    return {"temperature": (temperature or 1.0) if sampled else 0.0, **said}, sampled


def _number(
    parameters: Mapping[str, object],
    name: str,
    above: float = 0,
    *,
    most: float | None = None,
    usual: float | None = None,
) -> float | None:
    """Read a number that is greater than `above`; `usual` is the value that changes nothing, `None` stands for both."""
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise BadRequest(f"`{name}` must be a number", param=name)
    if value <= above or (most is not None and value > most):
        bound = "" if most is None else f" and at most {most:g}"
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
    """Return vLLM's word for it, which a worker may know: nobody counts tokens here, but no text has more than bytes."""
    limit = whole(parameters, "truncate", 1, _MOST_TOKENS)
    if limit is None or len(inputs.encode()) < limit:
        return {}
    return {"truncate_prompt_tokens": limit}
