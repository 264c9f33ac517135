"""Laws of the error raised when no replica may answer."""

import time
from dataclasses import replace

from registry.records import ModelType, Service, service_type_name
from router.errors import BadRequest, NobodyServes, UnknownModel, WorkerBusy, WorkerUnable
from router.requests import Kind, Pin
from router.select.candidates import Excluded, Reason
from router.select.nobody import no_candidate_error
from router.translate.verbatim import TGI, Verbatim
from tests.router.world import chat, own

THEIRS = own("http://127.0.0.1:1")


def test_a_name_that_no_node_offers_is_unknown_and_similar_names_are_suggested() -> None:
    error = no_candidate_error(chat("llamma"), (), ("llama", "llama-2", "qwen", "llamma"))
    assert isinstance(error, UnknownModel)
    assert set(error.nearest) == {"llama", "llama-2"}


def test_no_names_are_suggested_for_a_forwarded_request() -> None:
    error = no_candidate_error(replace(chat("llamma"), own_only=True), (), ("llama",))
    assert isinstance(error, UnknownModel)
    assert not error.nearest


def test_replicas_that_the_caller_ruled_out_do_not_make_a_name_known() -> None:
    ruled_out = [Excluded(THEIRS, Reason.PINNED), Excluded(THEIRS, Reason.HOP)]
    assert isinstance(no_candidate_error(chat(), ruled_out, ()), UnknownModel)
    error = no_candidate_error(chat(), [*ruled_out, Excluded(THEIRS, Reason.LOST)], ())
    assert isinstance(error, NobodyServes)
    assert "its node is lost (1)" in str(error)


def test_a_model_that_only_another_project_or_node_has_is_mentioned() -> None:
    ruled_out = [Excluded(THEIRS, Reason.PINNED)]
    project, model = THEIRS.service.project, chat().model
    error = no_candidate_error(replace(chat(), pin=Pin(project="other")), ruled_out, ())
    assert isinstance(error, UnknownModel)
    assert f"in the project 'other'; did you mean {project}/{model}?" in str(error)
    error = no_candidate_error(
        replace(chat(), pin=Pin(project=project, cid="third")), ruled_out, ()
    )
    assert isinstance(error, UnknownModel)
    assert "though others do" in str(error)
    # The sender of a forwarded request knows more, and answers the caller.
    sent = replace(chat(), pin=Pin(project="other"), own_only=True)
    assert str(no_candidate_error(sent, ruled_out, ())) == f"no node serves the model {model!r}"


def test_a_service_is_not_called_by_an_internal_name() -> None:
    request = replace(chat(service_type_name(ModelType.FINE_TUNING)), kind=Kind.FINE_TUNING)
    error = no_candidate_error(request, [Excluded(THEIRS, Reason.LOST)], ())
    assert str(error).startswith("the fine-tuning service is known, but no node serves it now")


def test_if_all_replicas_asked_for_a_pause_the_shortest_pause_is_reported() -> None:
    pauses = [Excluded(THEIRS, Reason.PAUSED, 7.0), Excluded(THEIRS, Reason.PAUSED, 3.0)]
    error = no_candidate_error(chat(), [*pauses, Excluded(THEIRS, Reason.LOST)], ())
    assert isinstance(error, WorkerBusy)
    assert error.retry_after == 3.0


def test_a_name_of_any_length_is_compared_with_thousands_in_bounded_time() -> None:
    names = [f"llama-{number}-{'x' * 200}" for number in range(5000)]
    began = time.monotonic()
    no_candidate_error(chat("l" * 512), (), names)
    assert time.monotonic() - began < 0.5


def test_a_model_of_another_type_is_a_bad_request_that_names_the_right_path() -> None:
    service = Service("p", "llama", type=ModelType.SPEECH)
    other = replace(THEIRS, service=service)
    error = no_candidate_error(chat(), [Excluded(other, Reason.OTHER_TYPE)], ())
    assert isinstance(error, BadRequest)
    assert str(error) == "'llama' does not serve /v1/chat/completions; use /v1/audio/speech"
    lost = [Excluded(other, Reason.OTHER_TYPE), Excluded(THEIRS, Reason.LOST)]
    assert isinstance(no_candidate_error(chat(), lost, ()), NobodyServes)


def test_a_parameter_that_no_worker_supports_is_refused_by_name() -> None:
    request = replace(chat(), verbatim=Verbatim(TGI, "generate", b"{}", "watermark"))
    wordless = [Excluded(THEIRS, Reason.WORDLESS)]
    error = no_candidate_error(request, wordless, ())
    assert isinstance(error, WorkerUnable)
    assert str(error) == "no worker of 'llama' supports `watermark`"
    assert error.param == "watermark"
    lost = [*wordless, Excluded(THEIRS, Reason.LOST)]
    assert isinstance(no_candidate_error(request, lost, ()), NobodyServes)


def test_an_image_for_models_that_take_none_is_refused_by_name() -> None:
    speaks = replace(THEIRS, service=Service("p", "llama", type=ModelType.SPEECH))
    unseeing = [
        Excluded(THEIRS, Reason.UNSEEING, detail="image and audio"),
        Excluded(THEIRS, Reason.UNSEEING, detail="image"),
        Excluded(speaks, Reason.OTHER_TYPE),
    ]
    error = no_candidate_error(chat(), unseeing, ())
    assert isinstance(error, WorkerUnable)
    assert (str(error), error.param) == ("'llama' does not accept image input", "messages")
    lost = [*unseeing, Excluded(THEIRS, Reason.LOST)]
    assert isinstance(no_candidate_error(chat(), lost, ()), NobodyServes)
