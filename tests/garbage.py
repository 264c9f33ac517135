"""What stays after it ended, until the garbage collector comes?"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector away."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def living(kind: type) -> int:
    """Count the objects of a class, garbage too."""
    return sum(type(one) is kind for one in gc.get_objects())
