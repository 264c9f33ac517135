"""Comparison of receipts: whether another node's chain is intact, and where two nodes report different tokens. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from node.auth.receipts import DOMAIN, Page, Side
from registry import signing
from registry.errors import InvalidSignature
from registry.records import PeerId


def faults(pages: Sequence[Page], *, node: PeerId, peer: PeerId) -> Sequence[str]:
    """Return what is wrong with `node`'s chain with `peer`: pages that were changed, are missing, or are not signed by `node`."""
    found: list[str] = []
    public = signing.public_of(node)
    for page in pages:
        place = f"page {page.number}"
        if (page.node, page.peer) != (node, peer):
            found.append(f"{place} is of other nodes")
        if page.hash != page.digest():
            found.append(f"{place} was changed")
            continue
        try:
            signature = bytes.fromhex(page.signature)
            signing.verify(public, DOMAIN, page.hash.encode(), signature)
        except (ValueError, InvalidSignature):
            found.append(f"{place} is not signed by its node")
    for before, page in pairwise(pages):
        if page.number != before.number + 1:
            found.append(
                f"{page.number - before.number - 1} pages before {page.number} are missing"
            )
        elif page.before != before.hash:
            found.append(f"page {page.number} does not follow the previous one")
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """A request with different token counts, prompt and completion, at this node (`here`) and at the other (`there`)."""

    request: str
    here: tuple[int, int]
    there: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ReceiptComparison:
    """Comparison of two nodes' receipts: the answers and tokens on which they agree, and the differences.

    `only_here` and `only_there` are requests of which the other node has no receipt: a node that was killed loses its last ones,
    and the nodes delete old pages at different times.
    """

    answers: int
    tokens: int
    differ: tuple[Difference, ...]
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]


def compare(here: Iterable[Page], there: Iterable[Page]) -> ReceiptComparison:
    """Compare this node's receipts with the other node's: what one asked, the other served."""
    ours = _sums(here, {Side.ASKED: Side.ASKED, Side.SERVED: Side.SERVED})
    theirs = _sums(there, {Side.ASKED: Side.SERVED, Side.SERVED: Side.ASKED})
    both = ours.keys() & theirs.keys()
    agreed = {key for key in both if ours[key].fits(theirs[key])}
    return ReceiptComparison(
        answers=sum(ours[key].answers for key in agreed),
        tokens=sum(ours[key].prompt + ours[key].completion for key in agreed),
        differ=tuple(
            Difference(key[0], ours[key].tokens, theirs[key].tokens)
            for key in sorted(both - agreed)
        ),
        only_here=tuple(sorted(key[0] for key in ours.keys() - both)),
        only_there=tuple(sorted(key[0] for key in theirs.keys() - both)),
    )


@dataclass(slots=True)
class _Sum:
    """Sum of one request's answers: a continued stream may have asked one node twice."""

    answers: int = 0
    prompt: int = 0
    completion: int = 0
    told: bool = True

    @property
    def tokens(self) -> tuple[int, int]:
        return self.prompt, self.completion

    def fits(self, other: "_Sum") -> bool:
        """Return whether both sums agree; tokens are compared only if both sides know them."""
        told = self.told and other.told
        return self.answers == other.answers and (self.tokens == other.tokens or not told)


def _sums(pages: Iterable[Page], sides: Mapping[Side, Side]) -> dict[tuple[str, Side], _Sum]:
    found: dict[tuple[str, Side], _Sum] = {}
    for row in (row for page in pages for row in page.rows):
        sum_ = found.setdefault((row.request, sides[row.side]), _Sum())
        sum_.answers += 1
        sum_.prompt += row.prompt or 0
        sum_.completion += row.completion or 0
        sum_.told &= row.prompt is not None
    return found
