"""Line of a process's log, as shown to operators and to the other processes of its node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. `time` is Unix time; `number` counts the lines of one process, whose id is `process`."""

    time: float
    level: str
    logger: str
    message: str
    process: int
    number: int
