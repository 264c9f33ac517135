"""A node survives all that a stranger on its mesh may send: its process stays the same, and no other node is affected.

The attacker is a process of its own, with an unguarded libp2p; every kind of attack is a test. Around each, requests go
through the victim to an honest node, and news of that node arrives.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from node.observe.recent import MAX_REMEMBERED as REMEMBERED
from registry.intake.newcomers import AT_ONCE
from tests.swarm.attacks.attacker import Attacker
from tests.swarm.attacks.floods import THIRD_PARTY
from tests.swarm.attacks.gossip import BAD_SIGNATURES, FORGERIES
from tests.swarm.attacks.kinds import FLOODS, KINDS, MALFORMED
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import percentile, show, until

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(120)]

MAX_GROWTH = {"malformed": 16.0, "floods": 64.0}
"""MiB that the victim may grow by, under each part. Listings take 23 of them: once, however many follow."""

LARGEST = "2 and 8 MiB of zeros"
"""The attack with the largest messages: the memory that the first ones take is kept for the next ones."""

JUDGED = {"200 forgeries": FORGERIES, "2,000 bad signatures": BAD_SIGNATURES}
"""How many frames of an attack the victim must have judged, and found bad: else it tests closed connections."""

CUT_OFF = {"19,900 made-up nodes listed by a member", "newer words of itself"}
"""Attacks of one peer that end with its being cut off."""

MAX_COMPARISONS = 100
"""Comparisons that an attack may bring about at another node than its victim. Unbounded, claims of newer words cost 556."""

REFUSED = 10_000
"""How many refusals of the kinds below the victim must have counted in all."""

_REFUSALS = (
    "connections_refused",
    "frames_bad",
    "frames_dropped",
    "kept_out",
    "questions_refused",
    "refused",
    "strangers_refused",
)

MAX_COMPLAINTS = 40
"""Warnings that an attack may leave in the log in ten seconds: five of each, of a few different ones."""

MAX_LAG = 1.0
"""Seconds by which the victim's event loop may wake too late. The goal is 0.05; a flood that was not bounded cost 5."""

NEWS_WITHIN = 5.0
DIALLING_SECONDS = 20.0
NOWHERE = "http://127.0.0.1:9/v1"

# All callers here have one address, the honest ones included.
_ROOMY = {"mesh": {"max_connections": 1_024, "max_connections_per_address": 1_024, "relay": True}}


@dataclass
class Scene:
    """A victim, an honest node with a model, and the attacker; what was measured so far."""

    victim: Node
    honest: Node
    worker: str
    attacker: Attacker
    resident: dict[str, float] = field(default_factory=dict)
    grown: dict[str, float] = field(default_factory=lambda: {"malformed": 0.0, "floods": 0.0})
    waits: dict[str, list[float]] = field(default_factory=lambda: {"malformed": [], "floods": []})
    news: dict[str, list[float]] = field(default_factory=lambda: {"malformed": [], "floods": []})
    lag: dict[str, float] = field(default_factory=lambda: {"malformed": 0.0, "floods": 0.0})


_COUNTED = (
    "frames_in",
    "syncs",
    "syncs_failed",
    "offences",
    "barred",
    "questions_refused",
    "refused",
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What the victim and the honest node had counted, and the victim's processor time, when an attack began."""

    at: float
    seconds: float
    victim: Counter[str]
    honest: Counter[str]

    @classmethod
    async def so_far(cls, scene: Scene, client: Client) -> Self:
        events = [await client.events(node) for node in (scene.victim, scene.honest)]
        return cls(time.monotonic(), processor_seconds(scene.victim), *events)

    async def since(self, scene: Scene, client: Client) -> dict[str, str]:
        """Return what an attack has cost until now."""
        now = await self.so_far(scene, client)
        share = (now.seconds - self.seconds) / (now.at - self.at)
        counted = {n: f"{now.victim[n] - self.victim[n]}" for n in _COUNTED}
        elsewhere = sum(now.honest[n] - self.honest[n] for n in ("syncs", "syncs_failed"))
        return {"core": f"{share:.0%}", **counted, "comparisons_elsewhere": str(elsewhere)}


@pytest.fixture(scope="module")
def scene(swarm: Swarm) -> Iterator[Scene]:
    victim, honest = swarm.start_all(Start("victim", _ROOMY), "honest")
    worker = swarm.start_worker("worker")
    attacker = Attacker(victim, swarm.folder / "attacker.log")
    yield Scene(victim, honest, worker.fields["url"], attacker)
    attacker.end()


async def test_one_neighbour_has_one_budget_for_strangers(swarm: Swarm, client: Client) -> None:
    victim = swarm.start("budget")
    attacker = Attacker(victim, swarm.folder / "budget.log")
    try:
        began = time.monotonic()
        await asyncio.to_thread(attacker.do, "1,000 identities told both ways")
        listed = len((await client.get(victim, "/api/v1/nodes"))["nodes"]) - 1
        took = time.monotonic() - began
    finally:
        attacker.end()
    show("identities by pushes and gossip at once", listed=str(listed), took=took)
    assert AT_ONCE <= listed <= AT_ONCE + 2 * (took + 1)


async def test_dials_to_addresses_of_a_third_party_are_rate_limited(
    swarm: Swarm, client: Client
) -> None:
    nodes = swarm.start_all("told", "next", "third")
    await client.met(nodes)
    host, ports = THIRD_PARTY
    dials = 0

    async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dials
        dials += 1
        writer.close()

    async with AsyncExitStack() as stack:
        for port in ports:
            await stack.enter_async_context(await asyncio.start_server(count, host, port))
        attacker = Attacker(nodes[0], swarm.folder / "third.log")
        stack.callback(attacker.end)
        await asyncio.to_thread(attacker.do, "a third party's addresses")
        await asyncio.sleep(DIALLING_SECONDS)
    show("dials to a third party by three nodes", dials=str(dials), within=DIALLING_SECONDS)
    assert 0 < dials <= len(nodes) * (DIALLING_SECONDS + 6)


@pytest.mark.parametrize("kind", KINDS)
async def test_honest_requests_and_news_get_through_an_attack(
    kind: str, scene: Scene, client: Client
) -> None:
    await _attack(kind, scene, client)


async def _attack(kind: str, scene: Scene, client: Client) -> None:
    """Attack the victim while requests go through it, and judge both."""
    part = "floods" if kind in FLOODS else "malformed"
    if part not in scene.resident:
        await _warm_up(scene, client)
        scene.resident[part] = resident(scene.victim)
    before = _complaints(scene.victim)
    cost = await Cost.so_far(scene, client)
    waits: list[float] = []
    async with asyncio.TaskGroup() as group:
        attack = group.create_task(asyncio.to_thread(scene.attacker.do, kind))
        while not attack.done():
            began = time.monotonic()
            answer = await client.chat(scene.victim, "honest")
            assert (answer.status, answer.node) == (200, scene.honest.peer), answer
            waits.append(time.monotonic() - began)
            await asyncio.sleep(0.02)

    scene.waits[part] += waits
    figures = await cost.since(scene, client)

    async def judged() -> bool:
        bad = (await client.events(scene.victim))["frames_bad"] - cost.victim["frames_bad"]
        return bad >= JUDGED.get(kind, 0)

    assert int(figures["comparisons_elsewhere"]) <= MAX_COMPARISONS
    if kind in CUT_OFF:
        assert figures["barred"] != "0"
    await until(judged, within=5, otherwise="most of it met a closed connection")
    name = f"news-{[*KINDS].index(kind)}"
    await client.register(scene.honest, "news", [name], NOWHERE)
    scene.news[part].append(await client.listed([scene.victim], name, within=NEWS_WITHIN))
    scene.lag[part] = max(scene.lag[part], await client.loop_lag(scene.victim))
    assert scene.victim.running
    log = scene.victim.log
    assert "Traceback" not in log
    assert " ERROR " not in log
    tens_of_seconds = 1 + float(str(attack.result()["seconds"])) // 10
    assert _complaints(scene.victim) - before <= MAX_COMPLAINTS * tens_of_seconds
    grown = resident(scene.victim) - scene.resident[part]
    scene.grown[part] = max(scene.grown[part], grown)
    show(
        kind,
        grown_by_mib=f"{grown:.1f}",
        stopped=str(attack.result()["stopped"]),
        took=str(attack.result()["seconds"])[:5],
        p50=percentile(waits, 0.5),
        p99=percentile(waits, 0.99),
        lag=await client.loop_lag(scene.victim),
        **figures,
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["malformed", "floods"])
async def test_memory_and_the_event_loop_stay_within_bounds(
    part: str, scene: Scene, client: Client
) -> None:
    kinds = MALFORMED if part == "malformed" else FLOODS
    if part not in scene.resident:
        for kind in kinds:
            await _attack(kind, scene, client)
    growth = scene.grown[part]
    waits, news = sorted(scene.waits[part]), scene.news[part]
    show(
        part,
        kinds=str(len(kinds)),
        grown_by_mib=f"{growth:.1f}",
        requests=str(len(waits)),
        p50=percentile(waits, 0.5),
        p99=percentile(waits, 0.99),
        longest=waits[-1],
        news_visible_max=max(news),
        loop_lag_max=scene.lag[part],
    )
    assert growth <= MAX_GROWTH[part]
    assert scene.lag[part] <= MAX_LAG


async def test_the_attacks_have_arrived_and_were_refused(scene: Scene, client: Client) -> None:
    counts = await client.events(scene.victim)
    refused = {event: counts[event] for event in _REFUSALS}
    show("refused", **{event: str(times) for event, times in refused.items()})
    show("offences", counted=str(counts["offences"]), barred=str(counts["barred"]))
    assert sum(refused.values()) >= REFUSED
    assert "frames that are malformed, forged or not their publisher's own" in scene.victim.log


async def _warm_up(scene: Scene, client: Client) -> None:
    await client.register(scene.honest, "honest", ["honest"], scene.worker)
    await client.listed([scene.victim, scene.honest], "honest")
    # A node's memory of its requests is filled before anything is measured.
    for _ in range(REMEMBERED):
        assert (await client.chat(scene.victim, "honest")).status == 200
    await asyncio.to_thread(scene.attacker.do, LARGEST)


def _complaints(node: Node) -> int:
    """Count the log lines that are not of level INFO."""
    return sum(" INFO " not in line for line in node.log.splitlines())


def processor_seconds(node: Node) -> float:
    """Return the processor time that a process has taken."""
    fields = Path(f"/proc/{node.actor.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(node: Node) -> float:
    """Return the memory that a process holds, in MiB."""
    status = Path(f"/proc/{node.actor.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
