"""Load between registries on a real event loop: the others hear what one measures, and no other node can forge it."""

from registry import wire
from registry.mesh.memory.network import MemoryNet
from registry.records import Load, LoadNote, PeerId, Service
from tests.registry.test_service import LLAMA, QWEN, A, B, C, node, until

BUSY = {LLAMA: Load(3, 1, 8, 40.0, 0.25)}


class Heard(dict[PeerId, dict[Service, Load]]):
    """The load that was reported last of each replica."""

    def take(self, who: PeerId, loads: dict[Service, Load]) -> None:
        self.setdefault(who, {}).update(loads)


async def test_the_others_hear_the_load_that_a_node_measures_and_its_end() -> None:
    net, heard = MemoryNet(), Heard()
    async with (
        node(net, A, LLAMA, QWEN) as a,
        node(net, B, bootstrap=(A,)) as b,
        node(net, C, bootstrap=(A,)) as c,
    ):
        c.load.on_load(heard.take)
        await until(lambda: c.catalog.digest == a.catalog.digest and len(b.catalog.held) == 3)
        digest = c.catalog.digest
        busy = dict(BUSY)
        a.load.measure(lambda: busy)
        await until(lambda: heard.get(A.peer) == BUSY)
        busy.clear()
        await until(lambda: heard[A.peer][LLAMA].in_flight == 0)
        assert heard == {A.peer: {LLAMA: Load(0, 0, 8, 0.0, 0.25)}}
        assert a.counters["loads_out"] == c.counters["loads_in"] == 2
        assert c.counters["loads_dropped"] == 0
        assert c.catalog.digest == digest


async def test_a_strangers_load_a_forged_one_and_a_repeated_one_are_not_handed_on() -> None:
    net, heard = MemoryNet(), Heard()
    async with node(net, A, LLAMA) as a, node(net, B, bootstrap=(A,)) as b:
        b.load.on_load(heard.take)
        await until(lambda: a.own.node in b.catalog.held and b.own.node in a.catalog.held)
        a.load.measure(lambda: BUSY)
        await until(lambda: heard)
        heard.clear()
        note = LoadNote(A.peer, a.own.version, 10**6, ((0, Load(9)),))
        forged = bytearray(wire.encode_load(note, C))
        forged[2:34] = A.public
        strange = wire.encode_load(LoadNote(C.peer, a.own.version, 1, ((0, Load(9)),)), C)
        repeated = wire.encode_load(LoadNote(A.peer, a.own.version, 1, ((0, Load(9)),)), A)
        for frame in (bytes(forged), strange, repeated):
            await a.mesh.publish(frame)
        await until(lambda: b.counters["loads_dropped"] == 2 and b.counters["frames_bad"] == 1)
        assert not heard
