"""Diagnosis of a node: findings, causes and remedies, as `modelvine doctor` shows them.

`machine` and `live_node` derive findings from values; `facts` gathers those of this machine; `bundle` writes the support file.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    """It works, but not as well as it should, or not for long."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. `what` names the cause, `do` the remedy; both end without a full stop."""

    check: str
    state: Severity
    what: str
    do: str = ""


def ok(check: str, what: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check, Severity.OK, what)


def warn(check: str, what: str, do: str) -> Finding:
    """Return a finding about something that works, but should be better."""
    return Finding(check, Severity.WARN, what, do)


def fail(check: str, what: str, do: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding(check, Severity.FAIL, what, do)


def fail_from_error(check: str, sentence: str, do: str) -> Finding:
    """Return a failure from the text of an error of this program: its advice follows a colon; `do` is used if it has none."""
    what, _, advice = sentence.partition(": ")
    return fail(check, what, advice) if advice else fail(check, sentence, do)


def failures(findings: Iterable[Finding]) -> int:
    """Return the number of findings about something that does not work."""
    return sum(finding.state is Severity.FAIL for finding in findings)
