"""Hypothesis strategies for identities, records, versions, services and frames."""

from hypothesis import strategies as st

from registry import wire
from registry.catalog import Signed
from registry.records import ModelType, Reach, Record, Revocation, Service, Standing, Version
from registry.signing import Identity

IDENTITIES = tuple(Identity(bytes([number]) * 32) for number in range(1, 9))
"""A fixed, small pool of keys, so that examples meet each other's nodes and shrink well."""

identities = st.sampled_from(IDENTITIES)
counters = st.one_of(st.integers(0, 5), st.integers(0, wire.MAX_COUNTER))
versions = st.builds(Version, counters, counters)
few_versions = st.builds(Version, st.integers(0, 2), st.integers(0, 3))

_printable = st.characters(exclude_categories=["C", "Z"])
names = st.one_of(
    st.sampled_from(["llama", "qwen", "team/a", "模型"]),
    st.text(_printable, min_size=1, max_size=64).filter(wire.is_name),
)
services = st.builds(
    Service,
    project=names,
    model=names,
    cid=st.sampled_from(["", "replica-1", "replica-2"]),
    type=st.sampled_from(ModelType),
    context=st.sampled_from([0, 1, 8_192, wire.MAX_CONTEXT]),
)
few_services = st.builds(
    Service,
    project=st.sampled_from(["p", "q"]),
    model=st.sampled_from(["llama", "qwen", "p/llama"]),
    cid=st.sampled_from(["", "1"]),
)


def lists_of(service: st.SearchStrategy[Service]) -> st.SearchStrategy[tuple[Service, ...]]:
    """Services as one node may announce them: no replica twice."""
    unique = st.lists(service, max_size=6, unique_by=lambda s: s.key)
    return unique.map(tuple)


_addresses = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
reaches = st.builds(
    Reach,
    mesh=st.lists(_addresses, max_size=3).map(tuple),
    links=st.lists(_addresses, max_size=3).map(tuple),
    certificate=st.binary(max_size=64),
)


@st.composite
def signed_records(
    draw: st.DrawFn,
    *,
    owners: st.SearchStrategy[Identity] = identities,
    at: st.SearchStrategy[Version] = versions,
    offered: st.SearchStrategy[Service] = services,
) -> Signed:
    """A record with the frame that its owner signed."""
    owner = draw(owners)
    record = Record(
        node=owner.peer,
        version=draw(at),
        standing=draw(st.sampled_from(Standing)),
        services=draw(lists_of(offered)),
        reach=draw(reaches),
        agent=draw(st.sampled_from(["", "modelvine/0"])),
        name=draw(st.sampled_from(["", "gpu-1", "größe"])),
        revoked=draw(st.sampled_from([(), (Revocation("0f" * 16, 1_800_000_000),)])),
    )
    return wire.encode_record(record, owner)


words = signed_records(at=few_versions, offered=few_services)
"""Records that compete for few keys with few versions: the input of the merge laws."""

frames = st.one_of(st.binary(max_size=300), signed_records().map(lambda signed: signed.frame))
"""Frames, valid ones and noise."""
