"""Every RPC and endpoint of each specification is listed by the dialect and the face of its protocol, and no other is."""

import pytest

from scripts import dialects
from tests.seeds import SEEDS

SPOKEN_OF = [
    pytest.param(protocol, vars(module).get("ENDPOINTS", {}), id=f"{protocol}-{side}")
    for side, modules in (("worker", dialects.of_dialects()), ("face", dialects.of_faces()))
    for protocol, module in modules.items()
    if protocol in SEEDS
]


@pytest.mark.parametrize(("protocol", "endpoints"), SPOKEN_OF)
def test_every_endpoint_of_a_specification_is_listed_and_no_other(
    protocol: str, endpoints: dict[str, str]
) -> None:
    assert set(SEEDS[protocol]) - set(endpoints) == set(), "missing"
    assert set(endpoints) - set(SEEDS[protocol]) == set(), "not in the specification"
    assert all(endpoints.values())


def test_every_dialect_lists_its_endpoints() -> None:
    silent = [p for p, module in dialects.of_dialects().items() if "ENDPOINTS" not in vars(module)]
    assert silent == []


def test_no_specification_names_an_endpoint_twice() -> None:
    assert [p for p, names in SEEDS.items() if len(set(names)) != len(names)] == []
    assert [len(names) for names in SEEDS.values()] == [6, 9, 28, 17, 3]


def test_an_endpoint_without_a_dialect_or_face_is_listed_as_not_yet_served() -> None:
    assert {"openai", "tgi", "llama_stack"} <= set(dialects.of_dialects())
    for protocol in SEEDS:
        *_, last = dialects.endpoints(protocol)
        served_by = (dialects.of_dialects().get(protocol), dialects.of_faces().get(protocol))
        assert last.count("not yet") == served_by.count(None)


def test_a_protocol_beyond_the_seeds_has_a_table_of_its_own() -> None:
    beyond = {*dialects.of_dialects(), *dialects.of_faces()} - set(SEEDS)
    text = "\n".join(dialects.endpoints_beyond())
    assert [protocol for protocol in beyond if protocol.replace("_", " ") not in text] == []
