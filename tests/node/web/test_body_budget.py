"""How much is held, in numbers and in requests that share it."""

import pytest

from node import web
from node.web.limits import Room


class Wire:
    def __init__(self, room: Room) -> None:
        self.room = room


def test_a_room_takes_so_much_and_no_more():
    room = Room(10)
    room.held = 4
    assert [room.fits(size) for size in (6, 7)] == [True, False]


def test_a_request_holds_what_it_grew_to_until_it_is_released():
    room = Room(10)
    one, two = (web.HttpRequest(Wire(room), "POST", "/", {}) for _ in "ab")
    one.hold(3)
    one.hold(7)
    two.expect(3)
    assert (one.held, two.held, room.held) == (7, 0, 7)
    with pytest.raises(web.NoRoom):
        two.hold(4)
    assert (two.held, room.held) == (0, 7)
    one.release()
    two.hold(10)
    assert (one.held, two.held, room.held) == (0, 10, 10)
