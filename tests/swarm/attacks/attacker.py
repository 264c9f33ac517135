"""Handle on the process that attacks a node."""

import json
import subprocess
import sys
from pathlib import Path

from tests.swarm.nodes import Node

SEED = "1"


class Attacker:
    """An attacking process, at a priority `nice` from 0 to 19, which leaves the processor to all others."""

    def __init__(self, victim: Node, log: Path, *, nice: int = 0) -> None:
        attack = [sys.executable, "-m", "tests.swarm.attacks", victim.p2p, SEED]
        command = ["nice", f"-n{nice}", *attack]
        pipe = subprocess.PIPE
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=errors, text=True
            )
        self._next()

    def do(self, kind: str) -> dict[str, object]:
        """Attack, and return what stopped it, and how long it took."""
        assert self.process.stdin
        self.process.stdin.write(f"{kind}\n")
        self.process.stdin.flush()
        report: dict[str, object] = self._next()
        return report

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)

    def _next(self) -> dict[str, object]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the attacker has ended"
        return json.loads(line)  # type: ignore[no-any-return]
