"""Errors that prevent a process from starting, or a command from working.

NodeError
├── WrongSetting     one or more settings cannot be used; each is named with its value, its origin and what would be valid
├── WrongUsage       the command line is invalid
├── OutputFailed     standard output cannot be written, as on a full disk
├── SecretRefused    a key or token file is missing, readable by others, or not what it should be
└── CommandFailed    a command could not do what it was told to
    ├── NoNode       no node answers where the command looked for one
    └── Refused      the node refused the request, with an HTTP status
"""


class NodeError(Exception):
    """Root of this package's errors; the text is a sentence for the person at the terminal."""


class WrongSetting(NodeError):
    """Settings that cannot be used, one sentence each; nothing was started."""


class WrongUsage(NodeError):
    """The command line is invalid."""


class OutputFailed(NodeError):
    """Standard output cannot be written."""


class SecretRefused(NodeError):
    """A file that holds a secret cannot be used as it is."""


class CommandFailed(NodeError):
    """The command could not do what it was told to."""


class NoNode(CommandFailed):
    """No node answers where the command looked for one."""


class Refused(CommandFailed):
    """The node refused, with an HTTP status and the error code of its answer, 0 for none."""

    def __init__(self, message: str, *, status: int, code: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
