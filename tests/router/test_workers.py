"""Laws of this machine's table of workers."""

from hypothesis import given
from hypothesis import strategies as st

from registry.records import Service
from router.workers import Worker, Workers

names = st.sampled_from(["a", "b", "c"])
services = st.builds(Service, project=names, model=names, cid=names)
tables = st.lists(st.builds(Worker, services, names), max_size=12)


@given(tables)
def test_of_two_workers_with_one_key_the_later_counts(workers: list[Worker]) -> None:
    table = Workers.of(workers)
    assert {worker.key: worker for worker in workers} == dict(table.by_key)
    assert len(table) == len(set(table)) == len(table.services())


@given(tables)
def test_every_worker_is_found_by_its_name_and_by_project_and_name(workers: list[Worker]) -> None:
    table = Workers.of(workers)
    for worker in table:
        service = worker.service
        assert worker in table.by_name[service.model]
        assert worker in table.by_name[f"{service.project}/{service.model}"]
    assert sum(map(len, table.by_name.values())) == 2 * len(table)


def test_a_worker_uses_its_registered_name_unless_it_has_its_own() -> None:
    assert Worker(Service("p", "m"), "http://w").own_model == "m"
    assert Worker(Service("p", "m"), "http://w", model="x.gguf").own_model == "x.gguf"


def test_load_options_keep_their_types() -> None:
    assert Worker(Service("p", "m"), "http://w").load_options == {}
    options = Worker(Service("p", "m"), "http://w", load='{"a":1,"b":true,"c":["x"]}').load_options
    assert options == {"a": 1, "b": True, "c": ["x"]}
    assert options["b"] is True
