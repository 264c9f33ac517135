"""Load-balancing policies: the order of candidates. One file per policy, found by its module name.

A policy module's docstring is its user documentation; the module defines `create() -> Policy`. A policy knows nothing of
connections, and leaves to `in_order` what holds for all policies: trusted candidates come before those in doubt. `order` must
not change a policy's state, since it is also called to explain choices to people: a policy learns only from `begun`.
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
    """Load-balancing policy. A policy derives from this class, for its defaults.

    One that `samples` gets a few drawn candidates if there are many; the others get all. For one that `compares` what
    candidates cost, nodes are asked for their load before a long request.
    """

    samples: bool = False
    compares: bool = False

    def order(
        self, request: Request, candidates: Sequence[Candidate], random: Chance
    ) -> Sequence[Candidate]:
        """Return all candidates, the first to be tried first."""

    def why(self, request: Request, candidate: Candidate, among: Sequence[Candidate]) -> str:
        """Describe briefly what speaks for or against one of these candidates, for people."""

    def figures(
        self,
        request: Request,  # noqa: ARG002
        candidate: Candidate,  # noqa: ARG002
        among: Sequence[Candidate],  # noqa: ARG002
    ) -> Mapping[str, float]:
        """Return by name the figures behind `why` besides load, for machines; none by default."""
        return {}

    def begun(self, request: Request) -> None:  # noqa: ARG002
        """Take in that the request is sent in the order that was just returned; do nothing by default."""
        return


NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""Every policy there is: the modules of this folder."""


_RANK = attrgetter("rank")


def load(name: str) -> Policy:
    """Make the policy of that name; raise a `ValueError` that lists the known names."""
    if name not in NAMES:
        raise ValueError(f"there is no policy {name!r}; known are: {', '.join(NAMES)}")
    return cast("Policy", import_module(f"{__name__}.{name}").create())


def summary(name: str) -> str:
    """Return the first paragraph of a policy's docstring."""
    doc = import_module(f"{__name__}.{name}").__doc__ or ""
    return doc.partition("\n\n")[0].replace("\n", " ").strip()


def in_order(
    policy: Policy, request: Request, candidates: Sequence[Candidate], random: Chance
) -> Sequence[Candidate]:
    """Order candidates first by how far they can be trusted (see `Candidate.rank`), then by a policy."""
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
    """Order candidates of one rank: those that will miss the caller's target time come last.

    For sessions of a batch, candidates without a free slot come after those with one.
    """
    ordered = policy.order(request, candidates, random)
    if keeps_to_slots(request):
        ordered = sorted(ordered, key=lambda c: not c.has_room)
    if not request.aim:
        return ordered
    too_late = late(request, candidates)
    return sorted(ordered, key=lambda c: c.key in too_late)
