"""Metadata beside a message: our id and trace of the request, and the operator's headers."""

from collections.abc import Mapping

from router.http.exchange import headers_to
from router.requests import Request
from router.workers import Worker


def metadata_to(worker: Worker, request: Request) -> Mapping[str, str]:
    """Return the metadata that travel to a worker; raise `WorkerFailed` where its operator's cannot be had."""
    headers = {name.lower(): value for name, value in headers_to(worker, request).items()}
    return {
        name: value
        for name, value in headers.items()
        if name not in ("content-type", "accept") and value.isascii() and value.isprintable()
    }
