"""TGI's own `/v1`: fields renamed in a request, and fields that every answer has."""

import orjson
import pytest

from node.faces.errors import refusal
from node.faces.tgi.chats import Completed, Forms, dropped, fields_of, spelt
from router.errors import AnswerBroken, BadRequest, WorkerFailed
from router.requests import Kind
from tests.node.faces.tgi.schema import check

SENT = {"model": "p/m", "messages": [{"role": "user", "content": "hi"}]}
HEAD = b'"id":"c","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"f"'
DELTA = b'{"role":"assistant","content":"a"}'
CHOICE = b'{"index":0,"delta":%b,"logprobs":null,"finish_reason":null}' % DELTA
FULL = b'data: {%b,"choices":[%b]}\n\n' % (HEAD, CHOICE)


def voice(kind=Kind.CHAT, *, spelt=False, **fields):
    return Completed(Forms(kind, SENT | fields, "r1", 5, spelt), max_event_bytes=999)


def chunks(stream: bytes):
    return [orjson.loads(event.removeprefix(b"data: ")) for event in stream.split(b"\n\n") if event]


def chunk(kind=Kind.CHAT, *, spelt=False, **choice):
    """Return the choices that one event of a worker's stream with one choice becomes."""
    stream = voice(kind, spelt=spelt, stream=True).encode_events(
        b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"
    )
    events = chunks(stream)
    for event in events:
        check("ChatCompletionChunk" if kind is Kind.CHAT else "Chunk", event)
    return [event["choices"][0] for event in events]


def test_the_path_names_the_model_and_null_fields_are_dropped():
    fields = {"model": "tgi", "models": ["x"], "project": "q", "n": None, "max_tokens": 5}
    messages = [{"role": "user", "content": "hi", "name": None}, "x"]
    assert fields_of(fields | {"messages": messages}, "p/m") == {
        "model": "p/m",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "hi"}, "x"],
    }


def test_tools_may_be_spelt_as_in_tgi():
    tools = [{"type": "function", "function": {"name": "look", "arguments": {"type": "object"}}}]
    fields = fields_of({"tools": tools, "tool_choice": "look"}, "m")
    function = {"name": "look", "parameters": {"type": "object"}}
    assert fields["tools"] == [{"type": "function", "function": function}]
    assert fields["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert fields_of({"tool_choice": "auto"}, "m")["tool_choice"] == "auto"
    named = fields_of({"tool_choice": {"function": {"name": "look"}}}, "m")
    assert named["tool_choice"] == fields["tool_choice"]


def test_tools_spelt_as_in_openai_are_unchanged():
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    assert fields_of({"tools": tools}, "m")["tools"] == tools


def test_a_grammar_becomes_a_response_format():
    fields = fields_of({"response_format": {"type": "json", "value": {"type": "object"}}}, "m")
    assert fields["response_format"]["json_schema"]["schema"] == {"type": "object"}
    fields = fields_of({"response_format": {"type": "regex", "value": "a+"}}, "m")
    assert fields == {"model": "m", "guided_regex": "a+"}
    with pytest.raises(BadRequest):
        fields_of({"response_format": {"type": "json", "value": 5}}, "m")
    own_format = {"type": "json_object"}
    assert fields_of({"response_format": own_format}, "m")["response_format"] == own_format


def test_fields_that_openai_lacks_are_dropped_and_named():
    fields = {"tool_prompt": "Use these:", "logit_bias": [0.5]}
    assert dropped(fields) == ("tool_prompt", "logit_bias")
    assert fields_of(fields, "m") == {"model": "m"}
    assert fields_of({"logit_bias": {"5": 1}}, "m")["logit_bias"] == {"5": 1}


def test_an_answer_gets_all_fields_that_tgis_clients_require():
    kind, body = voice().encode_whole(b'{"choices":[{"message":{"content":"ho"}}],"own":1}')
    answer = orjson.loads(body)
    assert kind == "application/json"
    assert {
        n: answer[n] for n in ("id", "object", "created", "model", "system_fingerprint", "own")
    } == {
        "id": "r1",
        "object": "chat.completion",
        "created": 5,
        "model": "p/m",
        "system_fingerprint": "",
        "own": 1,
    }
    message = {"role": "assistant", "content": "ho"}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    assert answer["choices"] == [choice]
    assert answer["usage"]["estimated"] is True


def test_fields_of_an_answer_are_kept():
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    fields = {"id": "c", "system_fingerprint": "f", "usage": usage, "object": "o"}
    fields |= {"created": 1, "model": "m"}
    choices = [{"index": 0, "text": "ho", "logprobs": {"tokens": []}, "finish_reason": "length"}]
    _, body = voice(Kind.COMPLETION).encode_whole(orjson.dumps(fields | {"choices": choices}))
    assert orjson.loads(body) == fields | {"choices": choices}


DEEP = b'{"choices":[{"message":{"content":"a"},"own":%b1%b}]}' % (b"[" * 400, b"]" * 400)


@pytest.mark.parametrize("body", [b"<html>", b"[]", DEEP])
def test_an_invalid_answer_is_a_failed_worker(body):
    with pytest.raises(WorkerFailed):
        voice().encode_whole(body)
    with pytest.raises(WorkerFailed):
        voice(stream=True).encode_events(b"data: " + body + b"\n\n")


def test_a_complete_stream_passes_byte_for_byte():
    telling = voice(stream=True)
    sent = b": comment\n\n" + FULL + FULL + b"data: [DONE]\n\n"
    passed = b"".join(
        telling.encode_events(sent[start : start + 7]) for start in range(0, len(sent), 7)
    )
    assert passed + telling.encode_end() == sent


def test_an_event_of_a_stream_gets_its_missing_fields():
    event = voice(stream=True).encode_events(
        b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    )
    payload = orjson.loads(event.removeprefix(b"data: "))
    assert (payload["system_fingerprint"], payload["object"]) == ("", "chat.completion.chunk")
    assert payload["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    "delta",
    [
        None,
        {},
        {"role": "assistant"},
        {"content": None},
        {"content": "a"},
        {"reasoning_content": "a"},
    ],
)
def test_each_delta_of_a_chat_has_a_role_and_a_text(delta):
    (choice,) = chunk(delta=delta, finish_reason="stop")
    text = (delta or {}).get("content") or ""
    assert (choice["delta"]["role"], choice["delta"]["content"]) == ("assistant", text)
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(("given", "said"), [(None, ""), ("", ""), ("length", "length"), (5, "")])
def test_the_reason_in_a_stream_of_a_completion_is_a_text(given, said):
    (choice,) = chunk(Kind.COMPLETION, text="a", finish_reason=given)
    assert (choice["text"], choice["finish_reason"]) == ("a", said)


def test_logprobs_have_tgis_form():
    tokens = {"content": [{"token": "a", "logprob": -1}], "refusal": None}
    (choice,) = chunk(delta={"content": "a"}, logprobs=tokens)
    assert choice["logprobs"]["content"] == [{"token": "a", "logprob": -1, "top_logprobs": []}]


CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}
PIECE = {"index": 0, "function": {"arguments": "{}"}}


def test_with_tgis_spelling_of_tools_each_event_has_one_call():
    assert spelt({"tools": [{"function": {"name": "look", "arguments": {}}}]})
    assert not spelt({"tools": [{"function": {"name": "look", "parameters": {}}}, 5]})
    two = [CALL, CALL | {"index": 1, "id": "c2"}]
    text, *calls = chunk(
        spelt=True, delta={"content": "a", "tool_calls": two}, finish_reason="stop"
    )
    assert (text["delta"], text["finish_reason"]) == ({"role": "assistant", "content": "a"}, None)
    assert [call["delta"]["tool_calls"] for call in calls] == two
    assert [call["finish_reason"] for call in calls] == [None, "stop"]


def test_each_piece_of_a_call_has_the_calls_id():
    telling = voice(spelt=True, stream=True)
    for piece in (CALL, PIECE):
        payload = {"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]}
        (event,) = chunks(telling.encode_events(b"data: " + orjson.dumps(payload) + b"\n\n"))
        check("ChatCompletionChunk", event)
        assert event["choices"][0]["delta"]["tool_calls"]["id"] == "c1"


def test_with_openais_spelling_of_tools_calls_have_openais_form():
    (choice,) = chunk(delta={"tool_calls": [CALL]})
    assert choice["delta"] == {"role": "assistant", "content": "", "tool_calls": [CALL]}


@pytest.mark.parametrize("spelt", [False, True])
@pytest.mark.parametrize("text", [None, "", "a"])
def test_a_message_with_tool_calls_keeps_them(spelt, text):
    message = {"content": text, "tool_calls": [CALL]}
    _, body = voice(spelt=spelt).encode_whole(orjson.dumps({"choices": [{"message": message}]}))
    answer = orjson.loads(body)
    assert answer["choices"][0]["message"]["tool_calls"] == [CALL]
    if spelt or not text:
        check("ChatCompletion", answer)


@pytest.mark.parametrize(
    "said",
    [
        {"choices": [{"message": {"content": [{"type": "text", "text": "a"}]}}]},
        {"choices": [{"message": None, "finish_reason": 5, "index": "0"}], "created": 1.5},
        {"choices": [], "usage": None, "id": None, "model": 5},
        {
            "choices": [{"message": {"content": "a"}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        },
    ],
)
def test_fields_that_a_worker_omits_are_filled_in(said):
    _, body = voice().encode_whole(orjson.dumps(said))
    check("ChatCompletion", orjson.loads(body))
    texts = {"choices": [{"text": None}], "usage": said.get("usage")}
    _, body = voice(Kind.COMPLETION).encode_whole(orjson.dumps(texts))
    check("CompletionFinal", orjson.loads(body))


def test_a_failure_in_a_stream_has_tgis_form_and_ends_it():
    telling = voice(stream=True)
    event = telling.encode_events(
        b'data: {"error":{"message":"oh","type":"server_error","code":"x"}}\n\n'
    )
    assert event.startswith(b'data:{"error":"Request failed during generation: oh"')
    assert (telling.encode_events(FULL), telling.encode_end()) == (b"", b"")
    broken = voice(stream=True).encode_failure(refusal(AnswerBroken("cut")))
    assert b'"error_type":"incomplete_generation"' in broken


def test_an_answer_in_one_piece_to_a_stream_is_a_failed_worker():
    with pytest.raises(WorkerFailed):
        voice(stream=True).encode_whole(b'{"choices":[]}')
