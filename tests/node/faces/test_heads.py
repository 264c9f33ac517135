"""The largest heads that are believed; what is refused is in `test_hostile_requests`."""

import pytest

from node.faces.errors import HeadTooLarge
from node.faces.heads import MAX_FIELD_BYTES, MAX_HEAD_BYTES, check_head
from tests.hostile.refused import JSON, post
from tests.hostile.wire import Listener


async def test_headers_are_taken_up_to_their_bounds_and_not_beyond(alone):
    host, port = alone.context.listening.http.split(":")
    listener = Listener(host, int(port))
    for length, status in ((MAX_FIELD_BYTES - 2, 404), (MAX_FIELD_BYTES + 2, 431)):
        heard = await listener.say(post(JSON, headers=b"X:" + b"y" * length + b"\r\n"))
        assert heard.statuses == [status]


class _Request:
    """As much of a request as is looked at before anything else."""

    version = (1, 1)
    host = "localhost"
    headers = {"Host": "localhost"}  # noqa: RUF012

    def __init__(self, size):
        self.raw_headers = [(b"X", b"y" * (size - 5))]


def test_all_headers_together_have_a_bound():
    check_head(_Request(MAX_HEAD_BYTES))
    with pytest.raises(HeadTooLarge):
        check_head(_Request(MAX_HEAD_BYTES + 1))
