"""Garbage collection: never in what was built before a process serves, which stays until the end."""

import gc

# A request makes some hundred objects that refer to each other; the default looks for garbage after 700.
_YOUNG_OBJECTS = 10_000

# The default looks at the oldest after a hundred times as many. It counts objects, not what they hold: of connections of the
# mesh that ended, a few objects each with buffers of hundreds of kilobytes, tens of megabytes waited for minutes (`make soak`).
# However often it is their turn, they are walked only once a quarter as many as there are have come to them: 12,000 in 0.5 ms.
_YOUNGER, _OLDER = 2, 2


def settle() -> None:
    """Take what was built out of the garbage collector's sight, then let it look.

    Every full collection would walk it: the imports alone are 126,000 objects and 35 ms, in which no byte moves. What
    little of it is garbage (4,000 objects) is kept, rather than looked for while others wait for the ready line.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNGER, _OLDER)
    gc.enable()
