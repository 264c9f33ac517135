"""Errors for a request that no replica may answer, with similar names as suggestions."""

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice

from registry.records import display_name
from router.errors import (
    BadRequest,
    NobodyServes,
    NoProvider,
    RouterError,
    UnknownModel,
    WorkerBusy,
    WorkerUnable,
)
from router.requests import SERVICES, Request
from router.select.candidates import Excluded, Reason
from router.select.fitness import kinds_of

NAMES_COMPARED = 500
"""Names that are compared with an unknown one; comparing takes some 10 µs each, and any caller may ask."""

_CHARACTERS_COMPARED = 64
_MAX_NAMED = 3

_NOT_MEANT = frozenset({Reason.PINNED, Reason.HOP})


def no_candidate_error(
    request: Request, excluded: Sequence[Excluded], names: Iterable[str]
) -> RouterError:
    """Return the error for a request that none of these replicas may answer; `names` are all that are offered anywhere."""
    if pauses := [e.seconds for e in excluded if e.reason is Reason.PAUSED]:
        message = f"all workers of {display_name(request.model)} requested a pause"
        return WorkerBusy(message, retry_after=min(pauses))
    # Replicas that the caller ruled out, or that a second hop would reach, do not make a name known.
    reasons = Counter(e.reason for e in excluded if e.reason not in _NOT_MEANT)
    if not reasons:
        return _unknown_model_error(request, excluded, names)
    if set(reasons) == {Reason.OTHER_TYPE}:
        return _wrong_type_error(request, excluded)
    if set(reasons) <= {Reason.OTHER_TYPE, Reason.UNSEEING}:
        return _unsupported_media_error(request, excluded)
    original = request.verbatim
    if original and set(reasons) <= {Reason.OTHER_TYPE, Reason.WORDLESS}:
        needs = original.needs
        return WorkerUnable(
            f"no worker of {display_name(request.model)} supports `{needs}`", param=needs
        )
    details = ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
    if Reason.DRAINING in reasons:
        details += "; `modelvine undrain` at its node ends the drain"
    return NobodyServes(
        f"{display_name(request.model)} is known, but no node serves it now: {details}"
    )


def _unknown_model_error(
    request: Request, excluded: Sequence[Excluded], names: Iterable[str]
) -> RouterError:
    """Return an error that lists similar names, or says that the model exists, though not where the caller wants it."""
    if request.kind in SERVICES:
        # No other service can know what was begun there.
        return (
            absent_service_error()
            if request.pin.node or request.pin.cid
            else NoProvider(SERVICES[request.kind].cli_name)
        )
    if request.own_only:
        return UnknownModel(request.model)
    services = [e.candidate.service for e in excluded if e.reason is Reason.PINNED]
    if not services:
        return UnknownModel(request.model, _nearest(request.model, names))
    projects, pinned = {service.project for service in services}, request.pin.project
    if pinned and pinned not in projects:
        qualified = sorted(f"{project}/{request.model}" for project in projects)[:_MAX_NAMED]
        return UnknownModel(request.model, qualified, scope=f" in the project {pinned!r}")
    return UnknownModel(
        request.model, scope=" at the requested node or replica, although others do"
    )


def absent_service_error() -> NobodyServes:
    """Return the error for a request about an object that only one service knows, which is absent."""
    return NobodyServes("the service with this object is unavailable; retry later")


def _wrong_type_error(request: Request, excluded: Sequence[Excluded]) -> BadRequest:
    services = [e.candidate.service for e in excluded if e.reason is Reason.OTHER_TYPE]
    paths = sorted({f"/v1/{kind}" for service in services for kind in kinds_of(service)})
    return BadRequest(
        f"{display_name(request.model)} does not serve /v1/{request.kind}; use {' or '.join(paths)}",
        param="model",
    )


def _unsupported_media_error(request: Request, excluded: Sequence[Excluded]) -> WorkerUnable:
    # The least that is missing anywhere: a model that sees but does not hear lacks less than one that does neither.
    missing = min((e.detail for e in excluded if e.reason is Reason.UNSEEING), key=len)
    return WorkerUnable(
        f"{display_name(request.model)} does not accept {missing} input", param="messages"
    )


def _nearest(model: str, names: Iterable[str]) -> Sequence[str]:
    compared = model[:_CHARACTERS_COMPARED]
    unique = dict.fromkeys(names)
    unique.pop(model, None)
    alike = (name for name in unique if name[:1].lower() == compared[:1].lower() != "\t")
    return get_close_matches(compared, islice(alike, NAMES_COMPARED), n=3)
