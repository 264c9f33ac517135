"""TGI's own `/v1`: what is renamed in a request, and what no answer lacks."""

import orjson
import pytest

from node.faces.errors import refusal
from node.faces.tgi.chats import Completed, dropped, fields_of
from router.errors import AnswerBroken, BadRequest, WorkerFailed
from router.requests import Kind

SENT = {"model": "p/m", "messages": [{"role": "user", "content": "hi"}]}
HEAD = b'"id":"c","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"f"'
FULL = b'data: {%b,"choices":[{"index":0,"delta":{},"logprobs":null}]}\n\n' % HEAD


def voice(kind=Kind.CHAT, **fields):
    return Completed(kind, SENT | fields, id_="r1", created=5, max_event_bytes=999)


def test_the_path_counts_and_what_is_null_was_not_said():
    given = {"model": "tgi", "models": ["x"], "project": "q", "n": None, "max_tokens": 5}
    messages = [{"role": "user", "content": "hi", "name": None}, "x"]
    assert fields_of(given | {"messages": messages}, "p/m") == {
        "model": "p/m",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "hi"}, "x"],
    }


def test_tools_may_be_spelt_as_tgi_does():
    tools = [{"type": "function", "function": {"name": "look", "arguments": {"type": "object"}}}]
    said = fields_of({"tools": tools, "tool_choice": "look"}, "m")
    function = {"name": "look", "parameters": {"type": "object"}}
    assert said["tools"] == [{"type": "function", "function": function}]
    assert said["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert fields_of({"tool_choice": "auto"}, "m")["tool_choice"] == "auto"
    named = fields_of({"tool_choice": {"function": {"name": "look"}}}, "m")
    assert named["tool_choice"] == said["tool_choice"]


def test_tools_of_openai_stay_as_they_are():
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    assert fields_of({"tools": tools}, "m")["tools"] == tools


def test_a_grammar_is_a_response_format():
    said = fields_of({"response_format": {"type": "json", "value": {"type": "object"}}}, "m")
    assert said["response_format"]["json_schema"]["schema"] == {"type": "object"}
    said = fields_of({"response_format": {"type": "regex", "value": "a+"}}, "m")
    assert said == {"model": "m", "guided_regex": "a+"}
    with pytest.raises(BadRequest):
        fields_of({"response_format": {"type": "json", "value": 5}}, "m")
    own = {"type": "json_object"}
    assert fields_of({"response_format": own}, "m")["response_format"] == own


def test_what_openai_has_no_word_for_is_dropped_and_named():
    given = {"tool_prompt": "Use these:", "logit_bias": [0.5]}
    assert dropped(given) == ("tool_prompt", "logit_bias")
    assert fields_of(given, "m") == {"model": "m"}
    assert fields_of({"logit_bias": {"5": 1}}, "m")["logit_bias"] == {"5": 1}


def test_an_answer_lacks_nothing_that_tgis_clients_insist_on():
    kind, body = voice().whole(b'{"choices":[{"message":{"content":"ho"}}],"own":1}')
    said = orjson.loads(body)
    assert kind == "application/json"
    assert {
        n: said[n] for n in ("id", "object", "created", "model", "system_fingerprint", "own")
    } == {
        "id": "r1",
        "object": "chat.completion",
        "created": 5,
        "model": "p/m",
        "system_fingerprint": "",
        "own": 1,
    }
    choice = {"message": {"content": "ho"}, "logprobs": None, "finish_reason": "stop"}
    assert said["choices"] == [choice]
    assert said["usage"]["estimated"] is True


def test_what_an_answer_says_stays():
    given = {"id": "c", "system_fingerprint": "f", "usage": {"prompt_tokens": 5}, "object": "o"}
    given |= {"created": 1, "model": "m"}
    choices = [{"text": "ho", "logprobs": {"tokens": []}, "finish_reason": "length"}]
    _, body = voice(Kind.COMPLETION).whole(orjson.dumps(given | {"choices": choices}))
    assert orjson.loads(body) == given | {"choices": choices}


DEEP = b'{"choices":[{"message":{"content":%b1%b}}]}' % (b"[" * 400, b"]" * 400)


@pytest.mark.parametrize("body", [b"<html>", b"[]", DEEP])
def test_what_is_no_answer_is_a_failed_worker(body):
    with pytest.raises(WorkerFailed):
        voice().whole(body)
    with pytest.raises(WorkerFailed):
        voice(stream=True).stream(b"data: " + body + b"\n\n")


def test_a_stream_that_lacks_nothing_passes_byte_for_byte():
    telling = voice(stream=True)
    sent = b": comment\n\n" + FULL + FULL + b"data: [DONE]\n\n"
    passed = b"".join(telling.stream(sent[at : at + 7]) for at in range(0, len(sent), 7))
    assert passed + telling.end() == sent


def test_an_event_of_a_stream_gets_what_it_lacks():
    event = voice(stream=True).stream(
        b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    )
    said = orjson.loads(event.removeprefix(b"data: "))
    assert (said["system_fingerprint"], said["object"]) == ("", "chat.completion.chunk")
    assert said["choices"][0]["logprobs"] is None


def test_a_failure_in_a_stream_is_tgis_and_the_last_word():
    telling = voice(stream=True)
    said = telling.stream(b'data: {"error":{"message":"oh","type":"server_error","code":"x"}}\n\n')
    assert said.startswith(b'data:{"error":"Request failed during generation: oh"')
    assert (telling.stream(FULL), telling.end()) == (b"", b"")
    broken = voice(stream=True).broken(refusal(AnswerBroken("cut")))
    assert b'"error_type":"incomplete_generation"' in broken


def test_who_wants_a_stream_gets_no_other_answer():
    with pytest.raises(WorkerFailed):
        voice(stream=True).whole(b'{"choices":[]}')
