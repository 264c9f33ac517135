"""Encoding of texts in TGI's form: whole, and in a stream whose last event has the details."""

import orjson

from node.faces.tgi.encoder import Text
from node.faces.tgi.request_mapping import read


def text(*, streams=False, listed=False, **parameters):
    request = read({"inputs": "Once", "parameters": parameters})
    return Text(request, streams=streams, listed=listed, max_event_bytes=9999)


def body(*, content=" upon", reason="stop", **fields):
    choice = {"index": 0, "text": content, "finish_reason": reason}
    return orjson.dumps({"choices": [choice], **fields})


def events(stream: bytes):
    return [orjson.loads(event.removeprefix(b"data:")) for event in stream.split(b"\n\n") if event]


USAGE = {"prompt_tokens": 5, "completion_tokens": 6}


def test_a_whole_text_has_its_details():
    kind, answer = text().encode_whole(body(usage=USAGE))
    details = {"finish_reason": "eos_token", "generated_tokens": 6, "seed": None}
    details |= {"prefill": [], "tokens": []}
    assert kind == "application/json"
    assert orjson.loads(answer) == {"generated_text": " upon", "details": details}


def test_a_list_and_the_prompt_are_returned_where_requested():
    _, answer = text(listed=True, details=False, return_full_text=True).encode_whole(body())
    assert orjson.loads(answer) == [{"generated_text": "Once upon"}]


def test_finish_reasons_are_tgis():
    def reason(finish_reason, **parameters):
        _, answer = text(**parameters).encode_whole(body(reason=finish_reason))
        return orjson.loads(answer)["details"]["finish_reason"]

    assert reason("length", stop=["x"]) == "length"
    assert reason("stop") == "eos_token"
    assert reason("stop", stop=["x"]) == "stop_sequence"


def test_headers_hold_the_usage_that_the_worker_reported():
    telling = text()
    telling.encode_whole(body(usage=USAGE))
    assert telling.headers == {
        "x-compute-characters": "4",
        "x-prompt-tokens": "5",
        "x-generated-tokens": "6",
    }
    for usage in ({}, {"usage": USAGE | {"estimated": True}}):
        telling = text()
        telling.encode_whole(body(**usage))
        assert telling.headers == {"x-compute-characters": "4"}


def test_the_last_event_of_a_stream_has_the_whole_text():
    telling = text(streams=True, seed=7, do_sample=True, return_full_text=True)
    stream = telling.encode_events(b'data: {"choices":[{"index":0,"text":" upon"}]}\n\n')
    stream += telling.encode_events(
        b'data: {"choices":[{"index":0,"text":" a","finish_reason":"length"}]}\n\n'
    )
    stream += telling.encode_events(
        b"data: " + orjson.dumps({"choices": [], "usage": USAGE}) + b"\n\n"
    )
    stream += telling.encode_events(b"data: [DONE]\n\n") + telling.encode_end()
    first, second, last = events(stream)
    token = {"id": 0, "text": " upon", "logprob": None, "special": False}
    assert first == {"index": 1, "token": token, "generated_text": None, "details": None}
    assert (second["index"], second["token"]["text"]) == (2, " a")
    assert (last["index"], last["token"]["text"], last["token"]["special"]) == (3, "", True)
    assert last["generated_text"] == "Once upon a"
    assert last["details"] == {"finish_reason": "length", "generated_tokens": 6, "seed": 7}


def test_pieces_are_counted_where_the_worker_reports_no_tokens():
    telling = text(streams=True)
    stream = telling.encode_events(
        b'data: {"choices":[{"index":0,"text":"a"}]}\n\ndata: [DONE]\n\n'
    )
    assert events(stream + telling.encode_end())[-1]["details"]["generated_tokens"] == 1


def test_a_stream_that_stops_without_an_end_is_incomplete():
    telling = text(streams=True)
    telling.encode_events(b'data: {"choices":[{"index":0,"text":"a"}]}\n\n')
    (last,) = events(telling.encode_end())
    assert last["error_type"] == "incomplete_generation"


def test_an_answer_in_one_piece_may_be_sent_as_a_stream():
    kind, stream = text(streams=True).encode_whole(body())
    assert kind == "text/event-stream"
    assert [event["generated_text"] for event in events(stream)] == [None, " upon"]


LIKELY = {
    "content": [
        {"token": " up", "logprob": -0.5, "id": 7, "top_logprobs": [{"token": " up", "id": 7}]},
        {"token": "on", "logprob": -0.25, "id": 8, "top_logprobs": []},
    ]
}
TOKENS = [
    {"id": 7, "text": " up", "logprob": -0.5, "special": False},
    {"id": 8, "text": "on", "logprob": -0.25, "special": False},
]


def with_likely(*, likely, **fields):
    choice = {"index": 0, "text": " upon", "finish_reason": "stop", "logprobs": likely}
    return orjson.dumps({"choices": [choice], **fields})


def test_tokens_are_listed_where_the_worker_reports_them():
    _, answer = text(details=True).encode_whole(with_likely(likely=LIKELY))
    assert orjson.loads(answer)["details"]["tokens"] == TOKENS
    telling = text(streams=True, details=True)
    stream = (
        telling.encode_events(b"data: " + with_likely(likely=LIKELY) + b"\n\n")
        + telling.encode_end()
    )
    assert [event["token"] for event in events(stream)[:-1]] == TOKENS
    assert [event["index"] for event in events(stream)] == [1, 2, 3]


def test_the_likeliest_tokens_are_listed_where_requested():
    _, answer = text(top_n_tokens=1).encode_whole(with_likely(likely=LIKELY))
    top = {"id": 7, "text": " up", "logprob": None, "special": False}
    assert orjson.loads(answer)["details"]["top_tokens"] == [[top], []]


def test_tokens_without_ids_are_not_listed_in_the_details():
    columns = {"tokens": [" up", "on"], "token_logprobs": [-0.5, -0.25]}
    _, answer = text(details=True).encode_whole(with_likely(likely=columns))
    assert orjson.loads(answer)["details"]["tokens"] == []
    telling = text(streams=True, details=True)
    stream = telling.encode_events(b"data: " + with_likely(likely=columns) + b"\n\n")
    assert [event["token"] for event in events(stream)] == [{**token, "id": 0} for token in TOKENS]


def test_tokens_that_do_not_make_up_the_text_are_not_listed():
    columns = {"tokens": [" up", "off"], "token_logprobs": [-0.5, -0.25], "token_ids": [7, 8]}
    telling = text(streams=True, details=True)
    [event] = events(telling.encode_events(b"data: " + with_likely(likely=columns) + b"\n\n"))
    assert event["token"] == {"id": 0, "text": " upon", "logprob": None, "special": False}
