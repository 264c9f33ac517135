"""Parsing of registrations from decoded JSON: the dialect of a worker, and the addresses that it may have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.auth.access import is_own_address
from node.faces.errors import Unparseable, WrongParameter
from node.faces.v0.registration import SCHEMES, read_project, read_worker
from registry.records import ModelType
from router import dialects
from router.ssrf_guard import SsrfGuard, networks_of

HERE = SsrfGuard(lambda host: host in ("localhost", "127.0.0.1"), lambda: {6100, 80})
MODEL = {"model": "m", "api": "http://localhost:1042"}


@pytest.mark.parametrize("kind", ModelType)
def test_every_type_of_model_can_be_registered(kind):
    assert read_worker("p", MODEL | {"type": int(kind)}, HERE).service.type is kind


def test_a_missing_type_is_text():
    assert read_worker("p", MODEL, HERE).service.type is ModelType.TEXT
    assert read_worker("p", MODEL | {"type": None}, HERE).service.type is ModelType.TEXT


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_scheme_of_the_url_chooses_the_dialect_where_there_is_one(scheme):
    dialect, spoken = SCHEMES[scheme]
    fields = MODEL | {"api": f"{scheme}://localhost:1042/x?y=1"}
    if dialect in dialects.NAMES:
        worker = read_worker("p", fields, HERE)
        assert (worker.dialect, worker.api) == (dialect, f"{spoken}://localhost:1042/x?y=1")
    else:
        with pytest.raises(WrongParameter, match="openai_http"):
            read_worker("p", fields, HERE)


def test_load_options_unknown_to_the_dialect_are_refused_by_name():
    api = {"api": "grpc+localai://localhost:1042"}
    assert read_worker("p", MODEL | api | {"load": {"ContextSize": 512}}, HERE).load
    with pytest.raises(WrongParameter, match="'Colour'") as refused:
        read_worker("p", MODEL | api | {"load": {"Colour": "red"}}, HERE)
    assert refused.value.param == "load"


def test_no_scheme_selects_the_dialect_of_nodes():
    assert "peer" not in {dialect for dialect, _ in SCHEMES.values()}


@pytest.mark.parametrize(
    "api",
    [
        "http://localhost:6100",
        "http://127.0.0.1:6100/v1",
        "http://localhost",
        "http://localhost/v1",
    ],
)
def test_a_worker_cannot_be_on_the_nodes_own_ports_explicit_or_implied(api):
    with pytest.raises(WrongParameter, match="this node itself"):
        read_worker("p", MODEL | {"api": api}, HERE)


@pytest.mark.parametrize(
    "api",
    [
        "http://0.0.0.0:1042",
        "http://[::]:1042",
        "http://2130706433:1042",
        "http://0x7f000001:1042",
        "http://0177.0.0.1:1042",
        "http://127.1:1042",
        "http://localhost.evil:1042",
        "http://localhost@evil:1042",
        "http://evil#@localhost:1042",
        "http://evil?@localhost:1042",
        "http://evil\\@localhost:1042",
        "http://localhost\\.evil:1042",
        "http://[::1].evil:1042",
        "http://evil[::1]:1042",
        "http://[::1]evil:1042",
        "http://[::ffff:10.0.0.1]:1042",
        "http://loc%61lhost:1042",
        "http://127.0.0.1%00.evil:1042",
        "http://:1042",
        "http:///v1",
        "http://user@localhost:1042",
        "http://user:word@localhost:1042",
        "http://localhost:0",
        "http://localhost:70000",
        "http://localhost:1042\n.evil",
        "unix:///run/worker.sock",
        "http+unix://%2Frun%2Fworker.sock/v1",
        "file:///etc/passwd",
        "//localhost:1042",
        "localhost:1042",
        "/run/worker.sock",
    ],
)
def test_a_url_that_may_lead_to_another_machine_is_refused(api):
    with pytest.raises(WrongParameter):
        read_worker("p", MODEL | {"api": api}, SsrfGuard(is_own_address))


@pytest.mark.parametrize(
    "api",
    [
        "http://localhost:1042",
        "http://LOCALHOST.:1042/v1",
        "http://[::1]:1042",
        "http://[0:0:0:0:0:0:0:1]:1042",
        "http://[::ffff:127.0.0.1]:1042",
        "https://127.0.0.2",
    ],
)
def test_unambiguous_spellings_of_this_machine_are_accepted(api):
    assert read_worker("p", MODEL | {"api": api}, SsrfGuard(is_own_address)).api == api


def test_a_worker_in_a_configured_network_is_registered_by_its_ip_address():
    listed = SsrfGuard(is_own_address, networks=networks_of(["198.51.100.0/28"]))
    for api in ("http://198.51.100.7:1042", "http://[::ffff:198.51.100.7]:1042"):
        assert read_worker("p", MODEL | {"api": api}, listed).api == api
    for api in ("http://198.51.100.16:1042", "http://box.lan:1042"):
        with pytest.raises(WrongParameter, match="same machine"):
            read_worker("p", MODEL | {"api": api}, listed)


def test_a_url_keeps_its_path_and_query():
    api = "http://localhost:1042/deploy/v1/chat/completions?version=2"
    assert read_worker("p", MODEL | {"api": api}, HERE).api == api


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
FIELDS = (
    "project",
    "model",
    "models",
    "api",
    "type",
    "cid",
    "dialect",
    "worker_model",
    "capacity",
    "context",
    "max_concurrency",
    "headers",
    "load",
    "template",
    "input_modalities",
)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_registration_is_read_or_refused(given):
    row = {name: value for name, value in given.items() if name != "models"}
    for fields in (given, {"project": "p", "models": [MODEL | row]}):
        try:
            project, workers = read_project(fields, HERE)
        except (Unparseable, WrongParameter):
            continue
        else:
            assert project
            assert all(worker.service.project == project for worker in workers)
