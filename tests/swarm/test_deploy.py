"""Samples of deploy/ for systemd, Prometheus, Grafana and Kubernetes, each checked by its own tool."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from ruamel.yaml import YAML

from node.config import sources
from tests.swarm.client import PROMPT, Client
from tests.swarm.nodes import Node, Swarm
from tests.workers.openai_worker import running

pytestmark = pytest.mark.swarm

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "modelvine.service").read_text()
ALERTS = (DEPLOY / "prometheus-alerts.yaml").read_text()
BOARD = orjson.loads((DEPLOY / "grafana.json").read_bytes())
KUBERNETES_VALIDATE = ROOT / ".venv" / "kubernetes" / "bin" / "kubernetes-validate"
METRIC = re.compile(r"\b(?:modelvine|process)_\w+")
BLACKBOX = "probe_ssl_earliest_cert_expiry"
EXPOSURE = 2.0
"""Greatest exposure that `systemd-analyze security` may report, of 10."""
SCHEMA = 39
"""The oldest schema of dashboards that counts as current: Grafana 11.0."""


def tool(name: str, claim: str) -> str:
    """Return the path of a tool, or skip the test and say what is not checked."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{claim} NOT CHECKED: there is no {Path(name).name}")
    return path


def checked(*command: str) -> str:
    """Run a tool and return its output; fail with the output where it finds a fault."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_systemd_accepts_the_unit_without_a_warning(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "THE UNIT IS")
    path = tmp_path / "modelvine.service"
    # An existing program stands in for the installed one.
    path.write_text(UNIT.replace("/opt/modelvine/bin/modelvine", "/bin/true"))
    assert checked(analyze, "verify", "--man=no", str(path)) == ""


def test_systemd_finds_the_unit_well_confined() -> None:
    analyze = tool("systemd-analyze", "THE UNIT IS")
    output = checked(analyze, "security", "--offline=true", str(DEPLOY / "modelvine.service"))
    match = re.search(r"Overall exposure level for modelvine.service: (\S+)", output)
    assert match
    assert float(match[1]) <= EXPOSURE


def test_the_unit_gives_a_node_longer_than_it_drains() -> None:
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert int(stop) > drain() + 10


def drain() -> float:
    """Return for how many seconds a node drains unless its settings say otherwise."""
    default = sources.SECTIONS["node"].model_fields["drain_timeout"].default
    assert isinstance(default, float)
    return default


def test_every_variable_of_the_samples_is_one_of_the_node() -> None:
    variables = set(re.findall(r"\bMODELVINE_\w+", UNIT + kubernetes()))
    known = {sources.variable(key) for key in sources.KEYS} | {"MODELVINE_NODE"}
    assert not variables - known


def test_prometheus_accepts_the_alerts() -> None:
    promtool = tool("promtool", "THE ALERTS ARE")
    assert "SUCCESS" in checked(promtool, "check", "rules", str(DEPLOY / "prometheus-alerts.yaml"))


def test_each_alert_fires_for_its_fault_and_at_no_other_time() -> None:
    promtool = tool("promtool", "THE ALERTS ARE")
    checked(promtool, "test", "rules", str(DEPLOY / "prometheus-alerts.test.yaml"))


def test_each_alert_has_a_test_and_says_what_to_do() -> None:
    tests = (DEPLOY / "prometheus-alerts.test.yaml").read_text()
    (group,) = YAML(typ="safe").load(ALERTS)["groups"]
    for rule in group["rules"]:
        assert f'{{alertname="{rule["alert"]}"}}' in tests
        assert set(rule["annotations"]) == {"summary", "action"}
        assert rule["labels"]["severity"] in {"critical", "warning"}


def expressions() -> list[str]:
    """Return every query of the dashboard."""
    return [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]


def test_prometheus_accepts_every_query_of_the_dashboard(tmp_path: Path) -> None:
    promtool = tool("promtool", "THE DASHBOARD'S QUERIES ARE")
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(expressions())
    ]
    path = tmp_path / "queries.yaml"
    path.write_bytes(orjson.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(rules)} rules found" in checked(promtool, "check", "rules", str(path))


def test_the_dashboard_is_of_a_current_schema_and_its_panels_do_not_overlap() -> None:
    assert BOARD["schemaVersion"] >= SCHEMA
    assert BOARD["uid"]
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    occupied: set[tuple[int, int]] = set()
    for panel in panels:
        position = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert position["x"] + position["w"] <= 24
        assert not occupied & cells, panel["title"]
        occupied |= cells
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", orjson.dumps(BOARD).decode()))
    assert used <= variables


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with nothing set."""
    with Swarm(tmp_path_factory.mktemp("nodes")) as swarm:
        yield swarm.start("node")


async def test_every_metric_and_event_of_dashboard_and_alerts_is_one_of_a_real_node(
    node: Node, client: Client
) -> None:
    async with running() as worker:
        await client.register(node, "mine", ["llama"], worker.url)
        body = {"model": "llama", "messages": list(PROMPT)}
        assert (await client.post(node, "/v1/chat/completions", body)).status == 200
        exposition = await client.metrics(node)
    queries = [*expressions(), ALERTS, *(v.get("definition", "") for v in variables())]
    # The worker does not report its queue; the family of metrics is there all the same.
    families = set(re.findall(r"^# TYPE (\S+)", exposition, re.MULTILINE)) | set(
        re.findall(r"^(\w+)[ {]", exposition, re.MULTILINE)
    )
    metrics = {name for query in queries for name in METRIC.findall(query)}
    assert len(metrics) > 20
    assert not metrics - families
    selectors = re.findall(r'(?:event|presence|part)=(~?)\\?"([^"\\]+)', " ".join(queries))
    values = set(re.findall(r'(?:event|presence|part)="(\w+)"', exposition))
    for is_pattern, alternatives in selectors:
        for pattern in alternatives.split("|") if is_pattern else [alternatives]:
            assert any(re.fullmatch(pattern, value) for value in values), pattern


def variables() -> list[dict[str, Any]]:
    """Return the variables of the dashboard."""
    listed = BOARD["templating"]["list"]
    assert isinstance(listed, list)
    return listed


def kubernetes() -> str:
    """Return the manifests."""
    return (DEPLOY / "kubernetes.yaml").read_text()


def test_the_manifests_are_valid_for_kubernetes() -> None:
    validate = tool(str(KUBERNETES_VALIDATE), "THE MANIFESTS' SCHEMA IS")
    output = checked(validate, "--strict", str(DEPLOY / "kubernetes.yaml"))
    assert output.count("passed for resource") == kubernetes().count("\nkind: ")


def test_manifests_fit_the_node_and_each_other() -> None:
    objects = {
        (o["kind"], o["metadata"]["name"]): o for o in YAML(typ="safe").load_all(kubernetes())
    }
    pods = objects["StatefulSet", "modelvine"]["spec"]
    pod = pods["template"]["spec"]
    assert ("Service", pods["serviceName"]) in objects
    assert objects["Service", pods["serviceName"]]["spec"]["clusterIP"] == "None"
    containers = {c["name"]: c for c in (*pod["initContainers"], *pod["containers"])}
    node = containers["node"]
    pause = node["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= pause + drain() + 10
    probes = {kind: node[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")}
    assert probes == {"liveness": "/healthz", "readiness": "/readyz"}
    # The worker outlives the node's drain.
    assert containers["worker"]["restartPolicy"] == "Always"
    assert containers["worker"] in pod["initContainers"]
    assert pod["securityContext"]["runAsNonRoot"]
    for container in containers.values():
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["image"].startswith("YOUR-")
