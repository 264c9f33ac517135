"""Plan of a run: its machines and workers, and its faults with their times. A pure function of the seed."""

import random
from dataclasses import dataclass
from enum import Enum, auto

SECONDS = 60.0
"""Virtual seconds with faults."""

QUIET = 60.0
"""Virtual seconds without faults at the end, after which all nodes must agree."""

FIRST_PORT = 7000
MODELS = ("m0", "m1", "m2")


@dataclass(frozen=True, slots=True, order=True)
class PlannedFault:
    """Fault of a `kind` on some machines or workers, `at` so many seconds after the start, for so many `seconds`."""

    at: float
    kind: str
    whom: tuple[int, ...]
    seconds: float
    size: float = 0.0

    def __str__(self) -> str:
        """Describe it in one line."""
        size = f" {self.size:.3g}" if self.size else ""
        return f"{self.at:7.3f} s: {self.kind}{size} of {list(self.whom)} for {self.seconds:.2f} s"


class Whom(Enum):
    """Target of a kind of fault."""

    MACHINE = auto()
    SOME = auto()
    PAIR = auto()
    WORKER = auto()
    CABLES = auto()


@dataclass(frozen=True, slots=True)
class FaultKind:
    """Kind of fault: its target, the ranges of its seconds and its size; one that `lasts` may be permanent."""

    name: str
    whom: Whom
    seconds: tuple[float, float]
    sizes: tuple[float, float] = (0.0, 0.0)
    lasts: bool = False


FOR_GOOD = 1_000.0
"""Seconds of a fault that does not end within a run."""

KINDS = (
    FaultKind("kill", Whom.MACHINE, (0.3, 15.0), lasts=True),
    FaultKind("power cut", Whom.MACHINE, (0.3, 15.0), lasts=True),
    FaultKind("stop", Whom.MACHINE, (0.3, 15.0), lasts=True),
    FaultKind("freeze", Whom.MACHINE, (0.3, 6.0)),
    FaultKind("freeze", Whom.MACHINE, (3.0, 15.0)),
    FaultKind("starve", Whom.MACHINE, (1.0, 15.0), (0.1, 1.2)),
    FaultKind("clock jump", Whom.MACHINE, (0.0, 0.0), (-86_400.0, 86_400.0)),
    FaultKind("partition", Whom.SOME, (1.0, 20.0)),
    FaultKind("one-way cut", Whom.PAIR, (1.0, 20.0)),
    FaultKind("loss", Whom.CABLES, (2.0, 15.0), (0.01, 0.2)),
    FaultKind("worker death", Whom.WORKER, (0.3, 10.0)),
    FaultKind("worker freeze", Whom.WORKER, (0.5, 12.0)),
    FaultKind("worker error", Whom.WORKER, (1.0, 10.0)),
    FaultKind("worker dies", Whom.WORKER, (1.0, 10.0)),
    FaultKind("slow worker", Whom.WORKER, (2.0, 10.0), (0.5, 4.0)),
)


@dataclass(frozen=True, slots=True)
class SeedPlan:
    """Plan of one run."""

    seed: int
    machines: int
    delay: float
    """Mean one-way seconds between two machines."""
    walls: tuple[float, ...]
    """Errors of the machines' wall clocks, in seconds."""
    workers: tuple[tuple[int, str], ...]
    """Machine and model of each worker; a worker's number is its position here."""
    heavy: tuple[int, int]
    """A machine, and the number of additional models that it registers."""
    rate: float
    """Requests a second."""
    faults: tuple[PlannedFault, ...]

    def __str__(self) -> str:
        """Describe the whole plan."""
        head = (
            f"seed {self.seed}: {self.machines} machines, {1000 * self.delay:.1f} ms apart, wall clocks off by "
            f"{[round(wall) for wall in self.walls]} s, workers {list(self.workers)}, heavy {self.heavy}"
        )
        return "\n".join([head, *(f"  {fault}" for fault in self.faults)])


def plan_of(seed: int) -> SeedPlan:
    """Return the plan of a seed."""
    rng = random.Random(f"plan {seed}")
    machines = rng.randint(3, 6)
    workers = [
        (host, model)
        for model in MODELS
        for host in sorted(rng.sample(range(machines), rng.randint(1, machines)))
    ]
    heavy = rng.choice((30, 300, 2000)) if rng.random() < 0.15 else 0
    count = rng.randint(2, 12)
    faults = [_fault(rng, machines, len(workers)) for _ in range(count)]
    if rng.random() < 0.2:
        at, everybody = rng.uniform(10, 50), tuple(range(machines))
        faults.append(
            PlannedFault(at, rng.choice(("power cut", "kill")), everybody, rng.uniform(0.5, 8.0))
        )
    if rng.random() < 0.1:
        at, one = rng.uniform(5, 40), (rng.randrange(machines),)
        count = float(rng.choice((40, 200, 600)))
        faults.append(PlannedFault(at, "strangers", one, rng.uniform(1.0, 15.0), count))
    return SeedPlan(
        seed=seed,
        machines=machines,
        delay=rng.choice((0.0005, 0.005, 0.02, 0.05)),
        walls=tuple(
            rng.choice((0.0, rng.uniform(-5, 5), 3600.0, -3600.0)) for _ in range(machines)
        ),
        workers=tuple(workers),
        heavy=(rng.randrange(machines), heavy),
        rate=rng.uniform(1.0, 4.0),
        faults=tuple(sorted(faults)),
    )


def _fault(rng: random.Random, machines: int, workers: int) -> PlannedFault:
    kind = rng.choice(KINDS)
    seconds = rng.uniform(*kind.seconds)
    if kind.lasts and rng.random() < 0.15:
        seconds = FOR_GOOD
    match kind.whom:
        case Whom.MACHINE:
            whom = [rng.randrange(machines)]
        case Whom.SOME:
            whom = sorted(rng.sample(range(machines), rng.randint(1, machines - 1)))
        case Whom.PAIR:
            whom = rng.sample(range(machines), 2)
        case Whom.WORKER:
            whom = [rng.randrange(workers)]
        case Whom.CABLES:
            whom = []
    at, size = rng.uniform(5.0, SECONDS - 2.0), rng.uniform(*kind.sizes)
    return PlannedFault(at, kind.name, tuple(whom), seconds, size)
