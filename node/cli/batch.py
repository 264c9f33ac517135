"""Run a file of requests in the background, and show its progress.

FILE has one request on each line in the format of OpenAI's Batch API: `custom_id`, `method`, `url` and `body`. A provider of the
mesh (`modelvine provide batch`) runs it; the results are written beside the file. Ctrl-C stops only the display: the same command
resumes it, also later or after a restart.

Examples:
  modelvine batch run lines.jsonl
  modelvine batch run lines.jsonl --out answers.jsonl --errors refused.jsonl
  modelvine batch run lines.jsonl --node http://127.0.0.1:6200 --window 7d
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.cli.console.options import add_action, add_node_options

if TYPE_CHECKING:
    from node.cli.console.client import Client

EVERY = 1.0
"""Seconds between two queries."""

_OVER = frozenset({"completed", "failed", "expired", "cancelled"})
_PIECE = 256 * 1024


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(title="commands", dest="action", metavar="{run}", required=True)
    run_ = add_action(
        actions,
        "run",
        "Run a file of requests, and show its progress.",
        "modelvine batch run lines.jsonl",
        "modelvine batch run lines.jsonl --out answers.jsonl --errors refused.jsonl --window 7d",
    )
    add = run_.add_argument
    add("file", metavar="FILE", type=Path, help="file with one request on each line")
    add("--out", metavar="FILE", type=Path, help="file for the results (default: FILE.answers)")
    add(
        "--errors",
        metavar="FILE",
        type=Path,
        help="file for failed lines (default: FILE.errors)",
    )
    add(
        "--window",
        metavar="T",
        default="24h",
        help="time after which unfinished requests expire, in hours or days (default: 24h)",
    )
    add("--every", metavar="S", type=float, default=EVERY, help=argparse.SUPPRESS)
    add_node_options(run_)


def run(arguments: argparse.Namespace) -> int:
    """Run a batch to its end; return 1 if it did not complete, or a line was refused."""
    import time  # noqa: PLC0415

    from node.cli.console.node_lookup import client  # noqa: PLC0415
    from node.cli.console.progress import Progress  # noqa: PLC0415
    from node.errors import CommandFailed, NoNode, Refused  # noqa: PLC0415

    node, file = client(arguments), Path(arguments.file)
    try:
        batch = _begin(node, file, arguments.window)
    except OSError as error:
        raise CommandFailed(f"{error.filename or file}: {error.strerror}") from error
    progress = Progress(time.monotonic)
    try:
        while batch["status"] not in _OVER:
            time.sleep(max(arguments.every, 0.01))
            try:
                batch = node.get(f"/v1/batches/{batch['id']}", holds="status")
            except (NoNode, Refused) as away:
                if isinstance(away, Refused) and away.status < 500:
                    raise
                # The node or provider may be back in a moment; the batch then continues.
                progress.waits(str(away))
            else:
                progress.seen(batch["status"], batch["request_counts"])
    finally:
        progress.end()
    return _finish(node, file, batch, arguments)


def _begin(node: "Client", file: Path, window: str) -> dict[str, Any]:
    """Return the batch of a file: the one that was started before, or a new one."""
    import hashlib  # noqa: PLC0415
    import json  # noqa: PLC0415

    from node.cli.console.text import note  # noqa: PLC0415
    from node.errors import CommandFailed, Refused  # noqa: PLC0415

    content, trace = file.read_bytes(), _trace(file)
    digest = hashlib.sha256(content).hexdigest()
    if trace.exists():
        saved = json.loads(trace.read_text() or "{}")
        if saved.get("sha256") == digest:
            try:
                earlier = node.get(f"/v1/batches/{saved['batch']}", holds="status")
            except Refused as refused:
                if refused.status != 404:
                    raise
                note("the earlier batch no longer exists; starting a new one")
            else:
                note(f"continuing {saved['batch']}")
                return earlier
    try:
        endpoint = json.loads(content.partition(b"\n")[0])["url"]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"{file}: its first line is not a request with a `url`") from error
    boundary = f"modelvine-{digest[:32]}"
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
        f'Content-Disposition: form-data; name="file"; filename="lines.jsonl"\r\n\r\n'
    )
    form = head.encode() + content + f"\r\n--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    sent = node.post("/v1/files", form, headers=headers)
    fields = {"input_file_id": sent["id"], "endpoint": endpoint, "completion_window": window}
    batch = node.post("/v1/batches", fields)
    trace.write_text(json.dumps({"batch": batch["id"], "sha256": digest}))
    note(f"began {batch['id']}")
    return batch


def _finish(
    node: "Client", file: Path, batch: dict[str, Any], arguments: argparse.Namespace
) -> int:
    from node.cli.console.text import note, plain  # noqa: PLC0415

    paths = {
        "output_file_id": arguments.out or file.with_name(f"{file.name}.answers"),
        "error_file_id": arguments.errors or file.with_name(f"{file.name}.errors"),
    }
    for field, path in paths.items():
        if batch.get(field):
            _fetch(node, batch[field], path)
    counts = batch["request_counts"]
    print(
        f"{batch['status']}: {counts['completed']:,} answered, {counts['failed']:,} refused, of {counts['total']:,}"
    )
    for field, path in paths.items():
        if batch.get(field):
            print(f"  {path}")
    for fault in (batch.get("errors") or {}).get("data", ()):
        note(plain(str(fault.get("message"))))
    _trace(file).unlink(missing_ok=True)
    return 0 if batch["status"] == "completed" and not counts["failed"] else 1


def _fetch(node: "Client", id_: str, path: Path) -> None:
    """Write a file of results atomically."""
    part = path.with_name(f"{path.name}.part")
    with node.request("GET", f"/v1/files/{id_}/content") as answer, part.open("wb") as out:
        while piece := answer.read(_PIECE):
            out.write(piece)
    part.replace(path)


def _trace(file: Path) -> Path:
    """Return the path of the note of which batch belongs to a file."""
    return file.with_name(f"{file.name}.batch")
