"""When is garbage looked for? Never in what was built before a process serves: that stays until the end."""

import gc

# A request makes some hundred objects that refer to each other; the default looks for garbage after 700.
_YOUNG_OBJECTS = 10_000


def settle() -> None:
    """Take what was built out of the garbage collector's sight, then let it look.

    Every full collection would walk it: the imports alone are 126,000 objects and 35 ms, in which no byte moves. What
    little of it is garbage (4,000 objects) is kept, rather than looked for while others wait for the ready line.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
    gc.enable()
