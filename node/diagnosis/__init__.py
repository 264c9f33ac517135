"""Diagnosis of a node: findings, causes and remedies, as `modelvine doctor` shows them.

`machine` and `running` decide, from values; `facts` gathers what this machine tells; `bundle` writes it all down for support.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    """It works, but not as it should, or not for long."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `what` names the cause, `do` says what helps; both end without a full stop."""

    check: str
    state: Severity
    what: str
    do: str = ""


def ok(check: str, what: str) -> Finding:
    """Return that all is well."""
    return Finding(check, Severity.OK, what)


def warn(check: str, what: str, do: str) -> Finding:
    """Return what should be better."""
    return Finding(check, Severity.WARN, what, do)


def fail(check: str, what: str, do: str) -> Finding:
    """Return what does not work."""
    return Finding(check, Severity.FAIL, what, do)


def said(check: str, sentence: str, do: str) -> Finding:
    """Return a failure in the words of an error of ours, whose advice stands behind a colon; `do` where it has none."""
    what, _, advice = sentence.partition(": ")
    return fail(check, what, advice) if advice else fail(check, sentence, do)


def failures(found: Iterable[Finding]) -> int:
    """Count what does not work."""
    return sum(finding.state is Severity.FAIL for finding in found)
