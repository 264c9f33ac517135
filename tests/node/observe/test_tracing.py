"""Tracing: which requests are traced, and the spans of one, which hold numbers, names and classes of errors."""

import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from node.config.settings import NodeSettings
from node.faces.access_log import Account
from node.observe import genai
from node.observe.tracing import SpanKind, Tracer, exporter_of, spans_of, tracer_of
from registry.records import Service
from router.errors import WorkerFailed
from router.openai.usage import Usage
from router.requests import Kind, PassedHeaders
from router.select.candidates import Candidate
from router.trace import Trace
from tests.node.observe.accounts import account_with
from tests.router.test_trace import TRACE, Counted
from tests.router.world import chat, own

ROOT = Path(__file__).parents[3]
PARENT = "00f067aa0ba902b7"
OURS = own("http://127.0.0.1:8080/v1?key=secret")
THEIRS = Candidate("another", Service("p", "llama", "c"))


@dataclass
class Place:
    node: str = "here"
    server: tuple[str, int] = ("127.0.0.1", 6100)


@dataclass
class Kept:
    """An exporter that keeps what it is given."""

    spans: list = field(default_factory=list)

    def take(self, spans):
        self.spans += spans

    def close(self):
        pass


def tracer(share=1.0, chance=0.5):
    return Tracer(
        Kept(), "here", ("127.0.0.1", 6100), share, lambda: 10.0, lambda: 1_010.0, lambda: chance
    )


def begun(made, **passed):
    account = Account("r-1", Kind.CHAT, 0.0)
    return made.begin(replace(chat(), passed=PassedHeaders(passed)), account), account


def traced(parent=PARENT):
    return Trace(TRACE, "a" * 16, "01", 1.0, Counted(), parent=parent)


def concluded(**fields):
    return account_with(**{"began": 0.5, "model": "llama", "seconds": 5.0, **fields})


def spans(account, trace):
    return {span.name: span for span in spans_of(account, trace, Place(), 1_000.0)}


def test_the_decision_of_a_caller_overrides_the_nodes_share():
    request, account = begun(tracer(share=0.0), traceparent=f"00-{TRACE}-{PARENT}-01")
    assert request.trace is account.trace
    assert (account.trace.id, account.trace.parent) == (TRACE, PARENT)
    unwanted = f"00-{TRACE}-{PARENT}-00"
    request, account = begun(tracer(share=1.0), traceparent=unwanted)
    assert (request.trace, account.trace) == (None, None)
    assert request.passed == {"traceparent": unwanted}


def test_other_trace_flags_of_a_caller_are_passed_on():
    _, account = begun(tracer(), traceparent=f"00-{TRACE}-{PARENT}-03")
    assert account.trace.flags == "03"
    assert begun(tracer(), traceparent=f"00-{TRACE}-{PARENT}-02")[1].trace is None


def test_without_a_callers_decision_chance_decides_and_the_next_hop_is_told():
    request, account = begun(tracer(share=0.5, chance=0.4), accept="a/b")
    assert account.trace.parent == ""
    assert len(account.trace.id) == 32
    request, account = begun(tracer(share=0.5, chance=0.5), accept="a/b")
    assert account.trace is None
    assert request.passed["traceparent"].endswith("-00")
    assert request.passed["accept"] == "a/b"


def test_the_spans_of_a_failed_and_an_answered_attempt():
    trace = traced()
    first = trace.add_attempt(chat(), OURS, (THEIRS,), 1)
    first.began = 2.0
    first.record_end(WorkerFailed("it quotes the prompt"), None, 3.0)
    second = trace.add_attempt(chat(), THEIRS, (), 2)
    second.began = 3.0
    second.record_first_byte("direct", 200, 4.0)
    second.record_end(None, None, 5.0)
    account = concluded(
        status=200, attempts=2, route="direct", first_byte_seconds=3.5, used=Usage(7, 9)
    )
    face, choice, attempt, call, hop = spans_of(account, trace, Place(), 1_000.0)
    assert (face.name, face.kind, face.parent, face.id) == (
        "chat llama", SpanKind.SERVER, PARENT, "a" * 16,
    )  # fmt: skip
    assert (face.began, face.ended) == (1_000_500_000_000, 1_005_500_000_000)
    assert face.attributes[genai.INPUT_TOKENS] == 7
    assert face.attributes[genai.OUTPUT_TOKENS] == 9
    assert face.attributes[genai.RESPONSE_MODEL] == "llama"
    assert [(e.name, e.at) for e in face.events] == [(genai.FIRST_BYTE, 1_004_000_000_000)]
    assert not face.failed
    assert (choice.parent, choice.began, choice.ended) == (
        face.id, 1_001_000_000_000, 1_002_000_000_000,
    )  # fmt: skip
    assert choice.attributes[genai.CANDIDATES] == 2
    assert (attempt.parent, attempt.failed, attempt.attributes[genai.ERROR]) == (
        face.id, True, "WorkerFailed",
    )  # fmt: skip
    assert (call.parent, call.kind, call.failed) == (attempt.id, SpanKind.CLIENT, True)
    assert (hop.parent, hop.kind, hop.failed) == (face.id, SpanKind.CLIENT, False)
    assert hop.attributes[genai.NODE] == "another"
    assert {span.trace for span in (face, choice, attempt, call, hop)} == {TRACE}
    assert "prompt" not in repr((face, choice, attempt, call, hop))


def test_a_span_shows_only_host_and_port_of_a_workers_address():
    trace = traced()
    attempt = trace.add_attempt(chat(), OURS, (), 1)
    attempt.began, attempt.ended = 2.0, 3.0
    *_, call = spans_of(concluded(status=499), trace, Place(), 0.0)
    assert (call.attributes[genai.SERVER], call.attributes[genai.PORT]) == ("127.0.0.1", 8080)
    assert "secret" not in repr(call)


def test_a_choice_that_failed_has_no_candidates_and_no_attempts():
    account = concluded(status=503, error="NobodyServes")
    face, choice = spans_of(account, traced(""), Place(), 0.0)
    assert (face.parent, face.failed, face.attributes[genai.ERROR]) == ("", True, "NobodyServes")
    assert (choice.failed, choice.attributes[genai.CANDIDATES]) == (True, 0)
    assert choice.ended == face.ended


def test_an_attempt_that_never_began_has_no_span_and_one_that_never_ended_ends_with_its_request():
    trace = traced()
    trace.add_attempt(chat(), THEIRS, (), 1)
    overtaken = trace.add_attempt(chat(), THEIRS, (), 2)
    overtaken.began = 2.0
    face, _, unfinished = spans_of(concluded(status=499), trace, Place(), 0.0)
    assert unfinished.ended == face.ended
    assert unfinished.attributes[genai.OUTCOME] == "cancelled"
    assert face.attributes[genai.ERROR] == "499"


def test_a_models_name_is_cut_and_shows_no_control_characters():
    account = concluded(status=404)
    account.model = "a\r\nb" + "x" * 1_000
    face, _ = spans_of(account, traced(), Place(), 0.0)
    assert face.attributes[genai.REQUEST_MODEL] == "a??b" + "x" * 252


def test_an_ended_request_is_exported_with_wall_clock_times():
    made = tracer()
    account = concluded(status=200)
    made.ended(account, traced())
    assert [span.name for span in made.exporter.spans] == ["chat llama", "choose llama"]
    assert made.exporter.spans[0].began == 1_000_500_000_000


def test_without_an_address_nothing_is_traced():
    settings = NodeSettings()
    assert exporter_of(settings, "here", {}) is None
    assert (
        tracer_of(None, settings, "here", now=lambda: 0, wall=lambda: 0, random=lambda: 0) is None
    )


def test_without_the_library_the_error_says_what_to_install():
    program = """
import sys
sys.modules["opentelemetry"] = None
from node.config.settings import NodeSettings
from node.observe.tracing import exporter_of
print(exporter_of(NodeSettings(), "here", {}))
try:
    exporter_of(NodeSettings(traces="http://127.0.0.1:1/v1/traces"), "here", {})
except ValueError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)  # fmt: skip
    assert (
        ran.stdout
        == 'None\nnode.traces needs an extra: make extras, or pip install "modelvine[otel]"\n'
    ), ran.stderr


def test_a_node_that_sends_no_traces_loads_nothing_of_the_library():
    program = "import sys, node.run, node.processes.helper; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)  # fmt: skip
    assert "node.observe.tracing" in ran.stdout.split()
    assert not [name for name in ran.stdout.split() if name.startswith("opentelemetry")]
