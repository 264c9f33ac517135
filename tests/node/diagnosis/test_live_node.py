"""What a node's answers mean: each cause is named, with what to do."""

import pytest

from node.diagnosis import Severity, live_node

PEER, OTHER, THIRD = "12D3KooWa", "12D3KooWb", "12D3KooWc"
JOIN = "/ip4/192.0.2.1/tcp/6101/p2p/12D3KooWb"
NEAR = "/ip4/127.0.0.1/tcp/6101/p2p/12D3KooWb"


def status(**fields):
    return {
        "name": "gpu1", "peer": PEER, "http": "http://127.0.0.1:6100", "version": "1.0", "uptime": 600.0, "in_flight": 0,
        "ready": {"http": "ok", "mesh": "ok", "store": "ok"}, "bootstrap": {"summary": "", "addresses": []},
        "p2p": ["/ip4/192.0.2.7/tcp/6101"], "link": "https://127.0.0.1:6102",
    } | fields  # fmt: skip


def row(node=OTHER, name="gpu2", **fields):
    return {
        "node": node, "name": name, "self": node == PEER, "state": "alive", "why": "", "origin": "record",
        "connection": "direct", "agent": "modelvine/1.0", "addresses": ["/ip4/192.0.2.1/tcp/6101"],
    } | fields  # fmt: skip


def asked(name="gpu2", **fields):
    return {
        "node": OTHER, "name": name, "answers": True, "route": "direct", "why": "", "clock": 0.01,
    } | fields  # fmt: skip


def worker(**fields):
    return {
        "project": "p", "model": "tiny", "cid": "", "api": "http://127.0.0.1:8080", "dialect": "openai_http",
        "answers": True, "speaks": "openai_http", "tries": ["GET /v1/models: 200"], "loads": False, "health": "ok",
        "circuit": "closed", "failures": 0, "retry_in": 0.0, "in_flight": 0, "slots": 4, "learned": False,
    } | fields  # fmt: skip


def only(findings):
    (finding,) = findings
    return finding


def test_a_node_that_drains_and_a_mesh_that_is_down_are_reported() -> None:
    ready = {"http": "draining: nothing new", "mesh": "restarted", "store": "ok", "identity": "two"}
    drains, mesh, identity = live_node.parts(status(ready=ready))
    assert (drains.state, drains.do) == (Severity.WARN, "modelvine undrain")
    assert (mesh.state, identity.state) == (Severity.FAIL, Severity.FAIL)
    assert only(live_node.parts(status())).state is Severity.OK


@pytest.mark.parametrize(("alone", "state"), [(True, Severity.FAIL), (False, Severity.WARN)])
def test_a_bootstrap_address_that_does_not_answer_is_reported_with_the_nodes_reason(
    alone, state
) -> None:
    reason = "it listens, but does not answer as a node: the swarm keys differ, it hangs, or it is no node"
    rows = [{"address": JOIN, "answers": False, "why": reason}]
    ready = {"http": "ok", "mesh": "ok", "store": "ok", "bootstrap": "0 of 1" if alone else "ok"}
    finding = only(live_node.bootstrap(status(bootstrap={"addresses": rows}, ready=ready)))
    assert (finding.state, "swarm keys differ" in finding.what) == (state, True)
    assert "--swarm-key" in finding.do
    rows = [{"address": JOIN, "answers": True, "why": ""}]
    assert only(live_node.bootstrap(status(bootstrap={"addresses": rows}))).state is Severity.OK


@pytest.mark.parametrize(
    ("said", "nodes", "state", "words"),
    [
        ({"p2p": ["/ip4/192.0.2.9/tcp/1/p2p/x/p2p-circuit"]}, [], Severity.WARN, "use a relay"),
        ({}, [row(origin="inbound")], Severity.OK, "1 of 1 other nodes dialled"),
        ({}, [row()], Severity.OK, "none has yet"),
        ({"p2p": []}, [], Severity.FAIL, "no address that others can dial"),
        ({"p2p": [NEAR]}, [], Severity.OK, "only on this machine"),
        ({"p2p": [NEAR]}, [row(addresses=[NEAR])], Severity.OK, "only on this machine"),
        ({"p2p": [NEAR]}, [row()], Severity.WARN, "other nodes are elsewhere"),
        ({"p2p": [NEAR]}, [row(state="lost")], Severity.OK, "only on this machine"),
        ({"p2p": [NEAR], "bootstrap": {"addresses": [{"address": JOIN}]}}, [], Severity.WARN, "elsewhere"),
        ({"p2p": [NEAR], "link": "https://0.0.0.0:6102"}, [row()], Severity.WARN, "no IPv4 address"),
    ],
)  # fmt: skip
def test_whether_other_nodes_can_dial_this_node_is_reported(said, nodes, state, words) -> None:
    finding = live_node.check_reachability(status(**said), nodes)
    assert (finding.state, words in finding.what) == (state, True)


def test_other_nodes_are_reported_by_how_they_answer() -> None:
    rows = [
        asked("a"),
        asked("b", route="relay"),
        asked("c", answers=False, why="no answer within 5 s"),
    ]
    relayed, silent, doubted, well = live_node.neighbours(
        [row(), row(THIRD, "d", state="unreachable", why="it does not answer")], rows
    )
    assert (relayed.state, silent.state) == (Severity.WARN, Severity.FAIL)
    assert "no answer within 5 s" in silent.what
    assert doubted.what == "d is unreachable: it does not answer"
    assert well.what == "1 other node answered directly"
    assert "no other node" in only(live_node.neighbours([row(PEER)], ())).what


@pytest.mark.parametrize(
    ("offsets", "state", "words"),
    [
        ({"a": 0.02}, Severity.OK, "within 0.020 s of another node's"),
        ({"a": 0.02, "b": -7.0}, Severity.WARN, "the clock of b is 7 s behind this machine's"),
        ({"a": 300.0}, Severity.FAIL, "the clock of a is 300 s ahead of this machine's"),
        (
            {"a": 299.0, "b": 301.0},
            Severity.FAIL,
            "this machine's clock is 300 s behind all others'",
        ),
        ({"a": -10.0, "b": -10.0, "c": 0}, Severity.WARN, "this machine's clock is 10 s ahead"),
    ],
)
def test_a_clock_that_differs_from_most_others_is_the_one_reported(offsets, state, words) -> None:
    finding = only(live_node.clocks([asked(name, clock=off) for name, off in offsets.items()]))
    assert (finding.state, words in finding.what) == (state, True)


def test_nodes_that_tell_no_time_give_no_finding_about_clocks() -> None:
    assert live_node.clocks([asked(clock=None)]) == []


@pytest.mark.parametrize(
    ("said", "state", "words"),
    [
        ({"answers": False, "health": "never answered", "tries": ["GET /v1/models: nothing listens there"]}, Severity.FAIL,
         "no answer from http://127.0.0.1:8080 (never answered; GET /v1/models: nothing listens there)"),
        ({"speaks": "tgi_http"}, Severity.FAIL, "speaks tgi_http, but is registered as openai_http"),
        ({"health": "silent: it has requests, but sends nothing"}, Severity.FAIL, "silent"),
        ({"circuit": "open", "failures": 3, "retry_in": 2.0}, Severity.FAIL, "open after 3 failures"),
        ({"speaks": "", "loads": True, "tries": ["GET /v1/models: 503"]}, Severity.WARN, "not ready (GET /v1/models: 503)"),
        ({"speaks": "", "tries": ["GET /v1/models: 401"]}, Severity.WARN, "does not answer as openai_http (GET /v1/models: 401)"),
        ({"speaks": "", "tries": ["GET /v1/models: nothing"], "in_flight": 1}, Severity.OK, "answers"),
        ({"cid": "b"}, Severity.OK, "p/tiny (b) answers as openai_http (4 slots)"),
        ({"learned": True}, Severity.OK, "(4 slots, learned)"),
        ({"slots": None}, Severity.OK, "unknown capacity"),
    ],
)  # fmt: skip
def test_each_way_in_which_a_worker_fails_is_named(said, state, words) -> None:
    finding = only(live_node.workers([worker(**said)]))
    assert (finding.state, words in finding.what) == (state, True)
    assert finding.do or state is Severity.OK


def test_healthy_workers_are_one_line() -> None:
    assert only(live_node.workers([worker(), worker()])).what == "all 2 answer"
    assert only(live_node.workers([worker(), worker(answers=False)])).state is Severity.FAIL
    assert "none" in only(live_node.workers([])).what


def test_mixed_versions_are_reported_by_node() -> None:
    rows = [row(agent="modelvine/0.9"), row(THIRD, "gone", agent="modelvine/0.8", state="lost")]
    finding = only(live_node.versions(status(), rows, {}))
    assert (finding.state, finding.what) == (
        Severity.WARN,
        "this node is modelvine/1.0, gpu2 modelvine/0.9",
    )
    versions = {"python": "3.11.7", "libp2p": "0.8.1", "loop": "uvloop"}
    finding = only(live_node.versions(status(), [row()], versions))
    assert finding.what == "every node is modelvine/1.0, python 3.11.7, libp2p 0.8.1, uvloop"


def test_a_node_that_was_not_restarted_after_an_upgrade_is_reported() -> None:
    assert live_node.check_installed_version(status(), "1.0") == []
    assert only(live_node.check_installed_version(status(), "1.1")).what == (
        "modelvine 1.1 is installed, but the running node is 1.0"
    )


@pytest.mark.parametrize(("busy", "words"), [(0.1, "too little CPU"), (0.9, "its own work")])
def test_a_late_event_loop_is_reported_with_its_cause(busy, words) -> None:
    metrics = {"modelvine_loop_lag_seconds": 1.0, "modelvine_loop_busy_seconds": busy}
    _, late = live_node.process(status(), metrics)
    assert (late.state, words in late.what) == (Severity.WARN, True)


def test_the_age_of_a_process_is_in_days_after_a_month() -> None:
    finding = only(live_node.process(status() | {"uptime": 31 * 86_400.0}, {}))
    assert finding.what.startswith("up for 31 days, ")


def test_a_full_relay_is_reported_and_a_node_that_is_no_relay_gives_no_finding() -> None:
    assert [*live_node.relay({"serves": False})] == []
    assert (
        only(live_node.relay({"serves": True, "reservations": 2, "refused": 0})).state
        is Severity.OK
    )
    assert only(live_node.relay({"serves": True, "refused": 3})).state is Severity.WARN


def test_errors_in_the_log_are_counted_and_the_last_is_shown() -> None:
    assert [*live_node.log([])] == []
    lines = [{"logger": "x", "message": "old"}, {"logger": "x", "message": "new"}]
    assert only(live_node.log(lines)).what == "2 recent errors, the last: x  new"


def test_a_user_who_may_not_examine_a_node_is_told_what_was_not_checked() -> None:
    findings = live_node.findings(status(), [row(PEER)], {}, {})
    assert findings[-1].what == "workers, store and clocks were not checked"
    assert not [finding for finding in findings if finding.check in ("workers", "store")]


def test_failed_handshakes_are_reported_with_where_to_look():
    assert live_node.handshakes(0) == []
    (finding,) = live_node.handshakes(3)
    assert finding.state is Severity.WARN
    assert "3 incoming connections" in finding.what
    assert "modelvine doctor" in finding.do
