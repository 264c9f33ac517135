"""Whole nodes under a virtual clock: a seed is reproducible, sabotage is detected, and fifty seeds break nothing."""

import asyncio
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path

import pytest

from bench.seeds.cables import Cables
from bench.seeds.checks import Checks
from bench.seeds.faults import Ills
from bench.seeds.loop import BEGINNING, PROCESS, SeedProcess, Stuck
from bench.seeds.plan import PlannedFault, SeedPlan, plan_of
from bench.seeds.wires import SeedPort, Wires, address_of
from bench.seeds.worker import Work
from bench.seeds.world import SeedWorld
from registry.store import Space

BLOCKS, IN_BLOCK = 10, 5
CALM = SeedPlan(
    seed=1,
    machines=3,
    delay=0.005,
    walls=(0.0, 0.0, 0.0),
    workers=((0, "m0"), (1, "m1"), (2, "m2")),
    heavy=(0, 0),
    rate=1.0,
    faults=(),
)


@pytest.fixture
def wires() -> Iterator[Wires]:
    made = Wires(Cables(1, delay=0.1))
    yield made
    made.close()


def of(process: SeedProcess, work: Coroutine[object, object, object], wires: Wires):
    context = copy_context()
    context.run(PROCESS.set, process)
    return wires.create_task(work, context=context)


class TestTime:
    def test_a_day_passes_without_waiting(self, wires: Wires) -> None:
        wires.run_until_complete(asyncio.sleep(86_400.0))
        assert wires.time() == BEGINNING + 86_400.0

    def test_waiting_for_an_event_that_never_comes_is_an_error(self, wires: Wires) -> None:
        with pytest.raises(Stuck):
            wires.run_until_complete(wires.create_future())

    def test_timers_that_expire_in_a_frozen_process_fire_when_it_thaws(self, wires: Wires) -> None:
        fired_at: list[float] = []
        process = SeedProcess("n", 0)

        async def work() -> None:
            await asyncio.sleep(1.0)
            fired_at.append(wires.time() - BEGINNING)

        of(process, work(), wires)
        wires.call_later(0.5, wires.freeze, process)
        wires.call_later(7.0, wires.thaw, process)
        wires.run_until_complete(asyncio.sleep(10.0))
        assert fired_at == [7.0]

    def test_a_process_is_unwell_until_the_last_of_several_faults_has_ended(self) -> None:
        now = 1.0
        ills = Ills(lambda: now)
        ills.begin(["n", "n"])
        ills.end(["n"])
        assert ills.last("n") == float("inf")
        now = 4.0
        ills.end(["n"])
        assert ills.last("n") == 4.0


class TestWires:
    """Two machines with an echo server on the second."""

    SIZE = 1_000_000

    def served(self, wires: Wires, events: Callable[[Wires, SeedProcess], None]) -> bytes:
        server, caller = SeedProcess("s", 1), SeedProcess("c", 0)
        sent = random.Random(1).randbytes(self.SIZE)

        async def serve() -> None:
            def make() -> asyncio.StreamReaderProtocol:
                return asyncio.StreamReaderProtocol(asyncio.StreamReader(), back)

            await wires.create_server(make, sock=SeedPort(server, 80))

        async def back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while piece := await reader.read(1_000):
                writer.write(piece)
                await writer.drain()
            writer.close()

        async def ask() -> bytes:
            reader, writer = await asyncio.open_connection(address_of(1), 80)
            writer.write(sent)
            writer.write_eof()
            events(wires, server)
            try:
                got = await reader.read()
            finally:
                writer.transport.abort()
            assert got == sent
            return got

        of(server, serve(), wires)
        return wires.run_until_complete(of(caller, ask(), wires))

    def test_bytes_arrive_complete_and_in_order(self, wires: Wires) -> None:
        assert len(self.served(wires, lambda *_: None)) == self.SIZE
        assert wires.time() - BEGINNING < 10.0

    def test_bytes_lost_or_held_up_by_a_cut_arrive_later(self, wires: Wires) -> None:
        def cut(wires: Wires, _: SeedProcess) -> None:
            wires.cables.losses.append(0.3)
            wires.cables.cut[1, 0] = 1
            wires.call_later(20.0, wires.cables.cut.clear)

        self.served(wires, cut)
        assert wires.time() - BEGINNING >= 20.0

    def test_the_kernel_of_a_killed_process_resets_its_connections(self, wires: Wires) -> None:
        def kill(wires: Wires, server: SeedProcess) -> None:
            server.gone = True
            wires.end(server)

        with pytest.raises(ConnectionResetError):
            self.served(wires, kill)

    def test_a_connection_to_a_port_without_a_listener_is_refused(self, wires: Wires) -> None:
        work = asyncio.open_connection(address_of(1), 81)
        with pytest.raises(ConnectionRefusedError):
            wires.run_until_complete(of(SeedProcess("c", 0), work, wires))


class TestSight:
    """The checks detect deliberate sabotage."""

    def broken(self, data: Path, sabotage: Callable[[SeedWorld], object], plan=CALM) -> list[str]:
        world = SeedWorld(plan, data)
        checks = Checks(world)
        try:
            sabotage(world)
            world.run()
            assert world.asked
            return checks.at_end()
        finally:
            world.close()

    def test_a_run_without_faults_breaks_nothing(self, tmp_path: Path) -> None:
        assert self.broken(tmp_path, lambda _: None) == []

    def test_a_store_that_forgets_loses_registrations(self, tmp_path: Path) -> None:
        class Forgetful(dict[str, bytes]):
            def __setitem__(self, key: str, value: bytes) -> None:
                pass

        def forget(world: SeedWorld) -> None:
            world.machines[1].disk.spaces[Space.WORKERS] = Forgetful()

        plan = replace(CALM, faults=(PlannedFault(40.0, "kill", (1,), 1.0),))
        broken = self.broken(tmp_path, forget, plan)
        assert any(line.startswith("lost registration: n0 of n1") for line in broken)

    def test_a_withdrawal_that_is_undone_leaves_a_ghost(self, tmp_path: Path) -> None:
        def conjure(world: SeedWorld) -> None:
            world.wires.call_later(100.0, world.registered.kept.pop, (1, "m1"))

        broken = self.broken(tmp_path, conjure)
        assert "ghost: n0 of n1: ['m1']" in broken

    def test_a_cut_that_the_checks_do_not_know_of_shows_as_failed_requests(
        self, tmp_path: Path
    ) -> None:
        def cut(world: SeedWorld) -> None:
            world.wires.call_later(20.0, world.cables.cut.update, [(0, 1), (1, 0)])

        broken = self.broken(tmp_path, cut)
        assert any(line.startswith("request failed though n1 served it") for line in broken)

    def test_work_done_again_after_its_answer_is_detected(self, tmp_path: Path) -> None:
        def repeat(world: SeedWorld) -> None:
            def again() -> None:
                done = next(a for a in world.asked if not a.stream and not a.error)
                world.works.append(Work(done.name, "w2", world.wires.time(), "a"))

            world.wires.call_later(50.0, again)

        broken = self.broken(tmp_path, repeat)
        assert [line.split(":")[0] for line in broken] == ["done again after it was answered"]

    def test_a_node_that_crashes_is_detected(self, tmp_path: Path) -> None:
        def fall(world: SeedWorld) -> None:
            def now() -> None:
                parts = world.machines[2].parts
                assert parts is not None
                del parts.registry._now

            world.wires.call_later(30.0, now)

        assert any(line.startswith("n2 ended by itself") for line in self.broken(tmp_path, fall))


def seeds(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.seeds", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_plan_depends_on_its_seed_alone() -> None:
    assert plan_of(5) == plan_of(5)
    assert plan_of(5) != plan_of(6)


SLOW_MACHINE = """
import runpy, time
for name in ("monotonic", "time", "thread_time"):
    setattr(time, name, lambda read=getattr(time, name), began=getattr(time, name)(): began + 100 * (read() - began))
runpy.run_module("bench.seeds", run_name="__main__")
"""
"""Runs seeds on a machine on which everything takes a hundred times as long."""


@pytest.mark.parametrize("seed", [7, 15])
def test_a_seed_gives_the_same_run_on_fast_and_slow_machines(seed: int) -> None:
    fast = seeds("--seed", str(seed)).stdout
    slow = subprocess.run(
        [sys.executable, "-c", SLOW_MACHINE, "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"\d+ events, [0-9a-f]{32}", fast)
    assert fast == slow.stdout, slow.stderr


@pytest.mark.parametrize("block", range(BLOCKS))
def test_fifty_seeds_break_nothing(block: int) -> None:
    first, count = str(block * IN_BLOCK), str(IN_BLOCK)
    done = seeds("--first", first, "--count", count, "--processes", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} of {count} seeds, 0 broken" in done.stdout
