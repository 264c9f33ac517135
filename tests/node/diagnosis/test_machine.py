"""What values of this machine mean: each cause is named, with what to do."""

import pytest

from node.diagnosis import Severity, failures, machine
from node.diagnosis.machine import Directory, KernelClock, Port, TlsFacts, UnresponsiveNode

DAY = 86_400.0
GB = 1_000_000_000
CERTIFICATE = TlsFacts("chain.pem", 0.0, 100 * DAY, ("vine.example", "*.site.example"))


def only(findings):
    (finding,) = findings
    return finding


def test_a_wrong_setting_is_named_with_where_it_comes_from() -> None:
    finding = only(machine.settings(["node.http is 'x' (from --http): it must be HOST:PORT"]))
    assert (finding.state, finding.what) == (Severity.FAIL, "node.http is 'x' (from --http)")
    assert finding.do == "it must be HOST:PORT"
    assert only(machine.settings(())).state is Severity.OK


def test_a_program_that_is_not_compiled_works_but_slower() -> None:
    finding = machine.program("1.2.3", "3.12.1", compiled=True)
    assert (finding.state, finding.what) == (
        Severity.OK,
        "modelvine 1.2.3 on Python 3.12.1, compiled",
    )
    finding = machine.program("1.2.3", "3.12.1", compiled=False)
    assert finding.state is Severity.OK
    assert "more CPU time" in finding.what


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (Directory("d", exists=False), Severity.OK, "is created"),
        (Directory("d", exists=False, writable=False), Severity.FAIL, "cannot create it"),
        (Directory("d", is_directory=False), Severity.FAIL, "directory d is a file"),
        (Directory("d", writable=False, owner=5, user=7), Severity.FAIL, "user 7 cannot write to d, which belongs to user 5"),
        (Directory("d", readable=False), Severity.FAIL, "cannot read d"),
        (Directory("d", owner=5), Severity.WARN, "belongs to user 5, and this is user 0"),
        (Directory("d", mode=0o777), Severity.WARN, "other users can write to d (mode 777)"),
        (Directory("d"), Severity.OK, "d belongs to this user"),
    ],
)  # fmt: skip
def test_a_data_directory_that_cannot_be_used_says_why(facts, state, words) -> None:
    finding = only(machine.data_dir(facts))
    assert finding.state is state
    assert words in finding.what
    assert finding.do or state is Severity.OK


@pytest.mark.parametrize(
    ("free", "state", "words"),
    [
        (0, Severity.FAIL, "full: 0 MB free"),
        (400_000_000, Severity.WARN, "nearly full: 400 MB"),
        (40 * GB, Severity.OK, "40.0 GB free"),
    ],
)
def test_a_disk_is_reported_before_it_is_full(free, state, words) -> None:
    _, disk = machine.data_dir(Directory("d", free=free))
    assert (disk.check, disk.state, words in disk.what) == ("disk", state, True)


def test_the_advice_in_the_error_of_a_refused_secret_is_what_to_do() -> None:
    refused = "identity.key can be read by other users: run `chmod 600 identity.key`"
    finding = machine.secret("identity", refused, success="")
    assert (finding.state, finding.do) == (Severity.FAIL, "run `chmod 600 identity.key`")
    assert machine.secret("identity", "", success="it is well").what == "it is well"
    assert machine.secret("identity", "broken", success="").do


@pytest.mark.parametrize(
    ("limit", "used", "state"),
    [
        (400, 0, Severity.FAIL),
        (1_024, 0, Severity.WARN),
        (100_000, 10, Severity.OK),
        (100_000, 90_000, Severity.FAIL),
    ],
)
def test_a_low_limit_on_open_files_is_reported_with_how_to_raise_it(limit, used, state) -> None:
    finding = machine.open_files(limit, wanted=16_384, used=used)
    assert finding.state is state
    assert "LimitNOFILE" in finding.do or state is Severity.OK


def test_a_low_limit_on_open_files_is_enough_for_few_connections() -> None:
    assert machine.open_files(1_024, wanted=100).state is Severity.OK


def test_a_port_in_use_is_reported_with_the_process_that_has_it() -> None:
    problem = "cannot listen on 127.0.0.1:6100: in use; stop it, or use a free port"
    taken = Port("node.http (--http)", "127.0.0.1:6100", problem, "process 7 (python)")
    bad, good = machine.ports([taken, Port("mesh.listen", "127.0.0.1:6101")])
    assert (bad.check, bad.state) == ("port 6100", Severity.FAIL)
    assert bad.what.endswith("in use; process 7 (python) listens there")
    assert bad.do == "stop it, or use a free port"
    assert good.state is Severity.OK


def test_a_clock_that_is_not_synchronised_is_a_warning() -> None:
    assert machine.clock(KernelClock(synchronised=True, error=0.02)).state is Severity.OK
    assert machine.clock(KernelClock(synchronised=False)).state is Severity.WARN
    assert "unknown" in machine.clock(KernelClock(synchronised=None)).what


@pytest.mark.parametrize(
    ("now", "wanted", "state", "words"),
    [
        (103 * DAY, ["vine.example"], Severity.FAIL, "expired 3 days ago"),
        (-DAY, ["vine.example"], Severity.FAIL, "not valid yet"),
        (90 * DAY, ["vine.example"], Severity.WARN, "expires in 10 days"),
        (DAY, ["other.example", "deep.a.site.example"], Severity.WARN, "none of which is a name"),
        (DAY, ["other.example", "a.site.example"], Severity.OK, "for another 99 days"),
        (DAY, ["VINE.example."], Severity.OK, "vine.example"),
    ],
)
def test_a_certificate_is_checked_for_its_time_and_its_names(now, wanted, state, words) -> None:
    finding = machine.tls(CERTIFICATE, now=now, hosts=wanted)
    assert (finding.state, words in finding.what) == (state, True)


def test_a_certificate_that_cannot_be_read_says_why() -> None:
    finding = machine.tls(TlsFacts("x", problem="x can be read by every user: run `chmod o= x`"), now=0, hosts=())  # fmt: skip
    assert (finding.state, finding.do) == (Severity.FAIL, "run `chmod o= x`")


def test_an_open_way_in_is_a_warning_with_how_to_close_it() -> None:
    finding = machine.exposure("mesh: anybody may use it; to close it, use --swarm-key FILE")
    assert (finding.state, finding.do) == (Severity.WARN, "to close it, use --swarm-key FILE")
    assert machine.exposure("").state is Severity.OK


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("connection refused", "start that node"),
        ("timed out", "firewall"),
        ("wrong peer id: another node answers there, 12D3KooWx", "that node's id"),
        ("this node itself answers there, but the address names another", "that node's id"),
        ("it listens, but does not answer as a node: the swarm keys differ, it hangs, or it is no node", "--swarm-key"),
        ("the name does not resolve", "DNS"),
        ("it is this node's own address", "cannot join itself"),
        ("", "wait"),
    ],
)  # fmt: skip
def test_each_reason_why_an_address_does_not_answer_has_its_advice(why, words) -> None:
    assert words in machine.dial_advice(why)


def test_a_bootstrap_address_that_refuses_the_connection_is_a_failure() -> None:
    bad, good = machine.bootstrap_dials([("/a", "connection refused"), ("/b", "")])
    assert (bad.state, good.state) == (Severity.FAIL, Severity.OK)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (UnresponsiveNode("refused"), "not running here: refused"),
        (UnresponsiveNode("refused", left=7), "process 7 ended unexpectedly"),
        (UnresponsiveNode("refused", left=7, left_lives=True), "not running here"),
        (UnresponsiveNode("timed out", lock=8), "process 8 has the data directory"),
    ],
)
def test_the_reason_why_no_node_answers_is_reported(facts, words) -> None:
    finding = machine.report_absence(facts)
    assert (finding.state, words in finding.what) == (Severity.FAIL, True)


def test_a_store_that_does_not_work_is_reported_in_its_own_words() -> None:
    newer = "m.db was written by a newer modelvine (layout 9): upgrade this one, or choose another"
    finding = machine.store("sqlite", newer)
    assert finding.what == "m.db was written by a newer modelvine (layout 9)"
    assert finding.do.startswith("upgrade this one")
    away = machine.store("redis", "Redis at h:6379: Connection refused")
    assert (away.what, "start it" in away.do) == ("Redis at h:6379: Connection refused", True)
    assert machine.store("redis", "", seconds=2.0).state is Severity.WARN
    assert machine.store("redis", "", seconds=0.001).what.endswith("1.0 ms")
    assert failures([finding, away]) == 2
