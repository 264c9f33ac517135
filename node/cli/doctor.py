"""Diagnose the local node, or find out why it does not start, with a remedy for each problem.

It checks settings, files and disk, ports, clocks, open files, certificate, access without a key, store, workers, bootstrap
addresses, reachability, relays and versions. It changes nothing. Exit code 1 means that something does not work. --bundle also
writes a support file; it contains no key, password, prompt or answer. If the settings of `modelvine up` are neither in a file nor
in the environment, pass them here.

Examples:
  modelvine doctor
  modelvine doctor --json
  modelvine doctor --config /etc/modelvine.toml
  modelvine doctor --node http://192.0.2.10:6100
  modelvine doctor --bundle support.tar.gz
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.cli.console.options import add_json, settings_given
from node.cli.console.setting_options import add_settings

if TYPE_CHECKING:
    from node.cli.console.client import Client
    from node.config.settings import Settings
    from node.diagnosis import Finding

LOG_LINES = 10_000
_LEFT = 12
"""Column width of a finding's first two words."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "--node",
        metavar="URL",
        default="",
        help="URL of the node to look at (default: MODELVINE_NODE, then the one that runs with this data directory)",
    )
    add("--bundle", metavar="FILE", default="", help="write a support file to FILE (.tar.gz)")
    add_settings(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Diagnose, and print the findings."""
    from node.cli.console.text import say_json  # noqa: PLC0415
    from node.diagnosis import failures  # noqa: PLC0415

    examination = examine(arguments)
    if arguments.bundle:
        _write(Path(arguments.bundle), examination)
    rows = [asdict(finding) for finding in examination.findings]
    if arguments.json:
        say_json({"findings": rows, "fails": failures(examination.findings)})
    else:
        _say(examination.findings)
        if arguments.bundle:
            print(f"wrote {arguments.bundle}: review it before you send it")
    return 1 if failures(examination.findings) else 0


@dataclass(slots=True)
class Examination:
    """Results of an examination."""

    settings: "Settings"
    data_dir: Path
    rows: Mapping[str, object]
    """Settings with their origins, safe to show."""
    findings: "list[Finding]" = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    """The node's answers, by the name of their file in the bundle."""


def examine(arguments: argparse.Namespace) -> Examination:
    """Examine the node, and this machine if the node is on it or not found."""
    from node.cli.console.client import Client  # noqa: PLC0415
    from node.cli.console.node_lookup import client, is_here  # noqa: PLC0415
    from node.diagnosis import warn  # noqa: PLC0415
    from node.errors import CommandFailed, NoNode, WrongSetting  # noqa: PLC0415

    examination, complaints = _configured(arguments)
    vars(arguments)["node.data_dir"] = str(examination.data_dir)
    node: Client | None = None
    reason = ""
    try:
        node = client(arguments)
        _ask(node, examination)
    except NoNode as error:
        reason = str(error).partition(". ")[0]
    except WrongSetting:
        do = "correct the settings first"
        examination.findings.append(warn("node", "not checked: the settings are invalid", do))
    except CommandFailed as error:
        do = "set MODELVINE_KEY to an operator's key, or run this as the node's user"
        examination.findings.append(warn("node", str(error), do))
    if node is None or is_here(node.target.url):
        runs = bool(examination.answers) or (node is not None and not reason)
        examination.findings[:0] = [
            *_here(examination, complaints, runs=runs),
            *_absent(examination, reason),
        ]
    elif reason:
        examination.findings[:0] = _absent(examination, reason)
    return examination


def _configured(arguments: argparse.Namespace) -> tuple[Examination, Sequence[str]]:
    """Return the settings, and their errors; with errors, defaults replace them, so that all else can be checked."""
    from node.config import sources  # noqa: PLC0415
    from node.config.paths import user_data_dir  # noqa: PLC0415
    from node.config.settings import Settings  # noqa: PLC0415
    from node.errors import WrongSetting  # noqa: PLC0415

    options = settings_given(arguments)
    try:
        loaded = sources.load(options, file=arguments.config)
    except WrongSetting as error:
        location = options.get("node.data_dir") or os.environ.get("MODELVINE_DATA_DIR", "")
        data_dir = Path(str(location)) if location else user_data_dir(os.environ)
        return Examination(Settings(), data_dir, {}), str(error).splitlines()
    rows = {key: {"value": value, "origin": origin} for key, value, origin in loaded.rows()}
    return Examination(loaded.settings, Path(loaded.settings.node.data_dir), rows), ()


def _here(
    examination: Examination, complaints: Sequence[str], *, runs: bool
) -> "Iterator[Finding]":
    """Check this machine. A running node has reported its ports, store and open files itself."""
    import platform  # noqa: PLC0415
    import time  # noqa: PLC0415

    from node import __version__  # noqa: PLC0415
    from node.compiled import is_compiled  # noqa: PLC0415
    from node.config.paths import CONTROL_TOKEN, IDENTITY_KEY  # noqa: PLC0415
    from node.diagnosis import facts, live_node, machine  # noqa: PLC0415
    from node.secrets import identity, secret_files  # noqa: PLC0415

    settings, data_dir = examination.settings, examination.data_dir
    if status := examination.answers.get("status.json"):
        yield from live_node.check_installed_version(status, __version__)
    yield machine.program(__version__, platform.python_version(), compiled=is_compiled())
    yield from machine.settings(complaints)
    yield from machine.data_dir(facts.directory(data_dir))
    key = facts.secret_problem(identity.load, data_dir)
    yield machine.secret("identity", key, success=facts.describe_secret(data_dir / IDENTITY_KEY))
    token = facts.secret_problem(secret_files.read_control_token, data_dir / CONTROL_TOKEN)
    yield machine.secret("token", token, success=facts.describe_secret(data_dir / CONTROL_TOKEN))
    if settings.node.swarm_key:
        swarm = facts.secret_problem(secret_files.read_swarm_key, Path(settings.node.swarm_key))
        success = f"{settings.node.swarm_key} is well formed; only nodes with the same key connect"
        yield machine.secret("swarm key", swarm, success=success)
    if settings.node.tls_cert:
        certificate = facts.certificate(settings.node.tls_cert, settings.node.tls_key)
        yield machine.tls(certificate, now=time.time(), hosts=facts.own_names(settings))
    examined = examination.answers.get("examination.json", {})
    # A running node knows its own options; the settings here are those of its next start.
    yield machine.exposure(
        examined["exposed"] if "exposed" in examined else _open_ways(examination)
    )
    if not any(row["clock"] is not None for row in examined.get("peers", ())):
        yield machine.clock(facts.kernel_clock())
    if not runs and not complaints:
        yield from machine.ports(facts.ports(settings))
        kind = settings.node.store.partition(":")[0]
        yield machine.store(kind, facts.store_error(settings, data_dir))
        yield from machine.bootstrap_dials(facts.bootstrap_dials(settings))
        limit = facts.open_files_limit()
        yield machine.open_files(limit, wanted=settings.web.connections)


def _open_ways(examination: Examination) -> str:
    from node.exposure import exposure_warning, surfaces  # noqa: PLC0415
    from node.faces import Listening  # noqa: PLC0415

    status = examination.answers.get("status.json", {})
    settings = examination.settings
    http = status.get("http", "").rpartition("/")[2] or settings.node.http
    link = status.get("link", "") or settings.node.link or "127.0.0.1:0"
    listening = Listening(http, link, secured=bool(settings.node.tls_cert))
    return exposure_warning(surfaces(settings, listening, status.get("p2p", ())))


def _absent(examination: Examination, reason: str) -> "list[Finding]":
    from node.cli.console.node_lookup import left_trace  # noqa: PLC0415
    from node.diagnosis import facts, machine  # noqa: PLC0415

    if not reason:
        return []
    trace = left_trace(examination.data_dir)
    return [machine.report_absence(facts.absence(examination.data_dir, reason, trace))]


def _ask(node: "Client", examination: Examination) -> None:
    """Query a node for all that it reports, and add the findings."""
    from node.diagnosis import live_node  # noqa: PLC0415
    from node.errors import Refused  # noqa: PLC0415

    answers = examination.answers
    answers["status.json"] = status = node.get("/api/v1/status", holds="ready")
    answers["nodes.json"] = nodes = node.get("/api/v1/nodes", holds="nodes")
    answers["catalog.json"] = node.get("/api/v1/catalog", holds="nodes")
    with node.request("GET", "/metrics") as answer:
        answers["metrics.txt"] = text = answer.read().decode(errors="replace")
    errors: Sequence[Mapping[str, Any]] = ()
    examined: Mapping[str, Any] = {}
    try:
        answers["examination.json"] = examined = node.get("/api/v1/examination", holds="process")
        lines = node.get("/api/v1/logs", holds="logs", number=str(LOG_LINES))["logs"]
        answers["logs.json"] = lines
        errors = [line for line in lines if line["level"] in ("error", "critical")]
    except Refused:
        # The caller has no rights to these; the findings say so.
        pass
    examination.findings += live_node.findings(status, nodes["nodes"], examined, _values(text))
    # A node of the previous version does not count them.
    examination.findings += live_node.handshakes(nodes.get("handshakes_failed", 0))
    examination.findings += live_node.log(errors)


def _values(text: str) -> Mapping[str, float]:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    families = text_string_to_metric_families(text)
    return {s.name: s.value for family in families for s in family.samples if not s.labels}


def _say(findings: "Sequence[Finding]") -> None:
    import textwrap  # noqa: PLC0415

    from node.cli.console.text import plain, terminal_columns  # noqa: PLC0415
    from node.diagnosis import Severity  # noqa: PLC0415

    width = max((len(finding.check) for finding in findings), default=0) + 2
    columns = max(terminal_columns(), 60) if sys.stdout.isatty() else 10_000
    for finding in findings:
        label = finding.state.upper() if finding.state is Severity.FAIL else finding.state
        head = f"{label:<6}{finding.check:<{width}}"
        indent = " " * len(head)
        for text, first in ((finding.what, head), (finding.do, f"{indent}→ ")):
            if text:
                under = indent if first == head else f"{indent}  "
                wrapped = textwrap.fill(plain(text), columns, initial_indent=first, subsequent_indent=under)  # fmt: skip
                print(wrapped)
    worst_first = (Severity.FAIL, Severity.WARN, Severity.OK)
    counts = [(sum(f.state is state for f in findings), state) for state in worst_first]
    print(", ".join(f"{count} {state}" for count, state in counts))


def _write(path: Path, examination: Examination) -> None:
    import platform  # noqa: PLC0415
    import time  # noqa: PLC0415
    from importlib.metadata import distributions  # noqa: PLC0415
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415

    from node import __version__  # noqa: PLC0415
    from node.compiled import is_compiled  # noqa: PLC0415
    from node.config import sources  # noqa: PLC0415
    from node.diagnosis import bundle, facts  # noqa: PLC0415

    password = urlsplit(examination.settings.node.store).password or ""
    secrets = [
        *facts.secrets_of(examination.settings, examination.data_dir),
        password,
        unquote(password),
        sources.configured_key(),
    ]
    versions = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "modelvine": __version__,
        "compiled": is_compiled(),
        "libraries": {d.name: d.version for d in sorted(distributions(), key=lambda d: d.name)},
    }
    parts = {
        "doctor.json": [asdict(finding) for finding in examination.findings],
        "settings.json": examination.rows,
        "versions.json": versions,
        **examination.answers,
    }
    home = os.environ.get("HOME", "")
    bundle.write(path, parts, bundle.Redactor(secrets, home=home), now=time.time())
