"""Load-balancing policies: the order of candidates. One file per policy, found by its module name.

A policy module's docstring is what users read of it; it defines `create() -> Policy`. A policy knows nothing of dialling, and
leaves to `in_order` what holds for all of them: the trusted come before those in doubt. To order is to say whom one would
ask, and people ask that too: what a policy learns, it learns from `begun`.
"""

import pkgutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Protocol, cast

from registry.clock import Chance
from router.requests import Request
from router.select.candidates import Candidate
from router.select.weights import keeps_to_slots, late


class Policy(Protocol):
    """One way to choose. A policy derives from this class, for what it has no view on.

    One that `samples` looks at a few candidates that were drawn; the others want to know everybody. For one that `compares`
    what candidates cost, nodes are asked how busy they are before a long request.
    """

    samples: bool = False
    compares: bool = False

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: Chance
    ) -> Sequence[Candidate]:
        """Return all candidates, the first to be tried first."""

    def why(self, request: Request, candidate: Candidate, among: Sequence[Candidate]) -> str:
        """Say in a few words what speaks for or against one of these candidates, for people."""

    def figures(
        self,
        request: Request,  # noqa: ARG002
        candidate: Candidate,  # noqa: ARG002
        among: Sequence[Candidate],  # noqa: ARG002
    ) -> Mapping[str, float]:
        """Return by name what `why` is made of besides load, for machines; by default there is nothing else."""
        return {}

    def begun(self, request: Request) -> None:  # noqa: ARG002
        """Take in that the request is sent out in the order that was just returned; by default nothing is learnt from it."""
        return


NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""Every policy there is: the modules of this folder."""


_RANK = attrgetter("rank")


def load(name: str) -> Policy:
    """Make the policy of that name; raise `ValueError` that lists the names there are."""
    if name not in NAMES:
        raise ValueError(f"there is no policy {name!r}; known are: {', '.join(NAMES)}")
    return cast("Policy", import_module(f"{__name__}.{name}").create())


def summary(name: str) -> str:
    """Return the first sentence of what a policy says of itself."""
    doc = import_module(f"{__name__}.{name}").__doc__ or ""
    return doc.partition("\n\n")[0].replace("\n", " ").strip()


def in_order(
    policy: Policy, request: Request, candidates: Sequence[Candidate], random: Chance
) -> Sequence[Candidate]:
    """Order candidates by a policy, and before all by how far they can be trusted, see `Candidate.rank`."""
    if len(candidates) < 2:
        return candidates
    ranks = {*map(_RANK, candidates)}
    if len(ranks) == 1:
        return _ordered(policy, request, candidates, random)
    groups = ([c for c in candidates if c.rank == rank] for rank in sorted(ranks))
    return [c for group in groups for c in _ordered(policy, request, group, random)]


def _ordered(
    policy: Policy, request: Request, candidates: Sequence[Candidate], random: Chance
) -> Sequence[Candidate]:
    """Order those who are trusted alike: who will miss the time that the caller wants comes after who will not.

    For sessions of a batch so does who has no slot free.
    """
    ordered = policy.order(request, candidates, random)
    if keeps_to_slots(request):
        ordered = sorted(ordered, key=lambda c: not c.has_room)
    if not request.aim:
        return ordered
    too_late = late(request, candidates)
    return sorted(ordered, key=lambda c: c.key in too_late)
