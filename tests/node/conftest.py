"""One PostgreSQL server for all tests of the node that need one."""

import pytest

from tests.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres():
    with PostgresServer() as server:
        yield server
