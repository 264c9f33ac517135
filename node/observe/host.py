"""Facts about this machine: operating system, processors, memory, disks and graphics, in api-v0's shape.

They are read from the kernel's files, and from `nvidia-smi` where it is installed. What cannot be read is left empty.
"""

import asyncio
import csv
import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from registry.clock import Clock
from registry.wire import is_node_name

# Utilisation is read again after this many seconds; an open page must not start a process per request.
_FRESH_SECONDS = 5.0
_NVIDIA_SECONDS = 5.0
_SECTOR_BYTES = 512
_MIB = 1024 * 1024
_NVIDIA = ("name", "memory.total", "memory.used", "utilization.gpu", "driver_version")
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
# Disks that are backed by memory, and devices that are parts of other disks.
_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)\d*")


def host_name() -> str:
    """Return the machine's name, or an empty string if it is not a valid name of a node."""
    name = socket.gethostname()
    return name if is_node_name(name) else ""


class Host:
    """This machine. Its facts are cached for some seconds."""

    def __init__(self, *, root: Path = Path("/"), now: Clock = time.monotonic) -> None:
        """Take the directory that holds `proc`, `sys` and `etc`, and the clock."""
        self._root = root
        self._now = now
        self._lock = asyncio.Lock()
        self._cached: tuple[float, dict[str, Any]] | None = None

    async def facts(self) -> dict[str, Any]:
        """Return the facts, disks with their serial numbers; those are for callers on this machine alone."""
        async with self._lock:
            if self._cached is None or self._now() - self._cached[0] > _FRESH_SECONDS:
                self._cached = self._now(), await asyncio.to_thread(read_facts, self._root)
            return self._cached[1]


def read_facts(root: Path) -> dict[str, Any]:
    """Read the facts once, in the calling thread."""
    return {
        "os": _system(root / "etc/os-release"),
        "cpu": _processors(_text(root / "proc/cpuinfo")),
        "memory": _memory(_text(root / "proc/meminfo")),
        "disk": list(_disks(root / "sys/block")),
        "gpu": list(_nvidia()) or list(_cards(root / "sys/class/drm")),
    }


def without_serials(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that may be shown to callers on other machines."""
    return facts | {"disk": [disk | {"serial_number": ""} for disk in facts["disk"]]}


def _system(release: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in _text(release).splitlines())
    fields = {key: value.strip().strip("\"'") for key, _, value in pairs}
    return {
        "os": platform.system().lower(),
        "platform": fields.get("ID", platform.system().lower()),
        "platform_family": fields.get("ID_LIKE", "").partition(" ")[0] or fields.get("ID", ""),
        "platform_version": fields.get("VERSION_ID", platform.version()),
        "kernel_version": platform.release(),
        "kernel_arch": platform.machine(),
    }


def _processors(cpuinfo: str) -> list[dict[str, Any]]:
    """Group the kernel's threads by socket; a machine that names no sockets counts as one socket."""
    sockets: dict[str, dict[str, Any]] = {}
    for block in filter(None, cpuinfo.split("\n\n")):
        pairs = (line.partition(":") for line in block.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        if "processor" not in fields:
            continue
        processor = sockets.setdefault(
            fields.get("physical id", "0"),
            {
                "model_name": fields.get("model name", platform.machine()),
                "cores": set(),
                "threads": 0,
            },
        )
        processor["cores"].add(fields.get("core id", fields["processor"]))
        processor["threads"] += 1
    return [
        {
            "model_name": processor["model_name"],
            "total_cores": len(processor["cores"]),
            "total_threads": processor["threads"],
        }
        for processor in sockets.values()
    ]


def _memory(meminfo: str) -> dict[str, int]:
    kib = {
        key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB", meminfo, re.MULTILINE)
    }
    total = kib.get("MemTotal", 0) * 1024
    return {
        "total_physical_bytes": total,
        "total_usable_bytes": total,
        "available_bytes": kib.get("MemAvailable", 0) * 1024,
    }


def _disks(block: Path) -> Iterable[dict[str, Any]]:
    for device in sorted(block.iterdir()) if block.is_dir() else ():
        size = _text(device / "size").strip()
        if _NO_DISK.match(device.name) or not size.isdigit() or size == "0":
            continue
        spins = _text(device / "queue/rotational").strip() == "1"
        virtual = device.name.startswith(("vd", "xvd", "nbd"))
        yield {
            "drive_type": "virtual" if virtual else "HDD" if spins else "SSD",
            "size_bytes": int(size) * _SECTOR_BYTES,
            "model": _text(device / "device/model").strip(),
            "serial_number": _text(device / "device/serial").strip(),
        }


def _nvidia() -> Iterable[dict[str, Any]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return
    query = [program, f"--query-gpu={','.join(_NVIDIA)}", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(  # noqa: S603 (no word of it comes from a caller)
            query, capture_output=True, text=True, timeout=_NVIDIA_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return
    yield from nvidia_cards(output)


def nvidia_cards(table: str) -> Iterable[dict[str, Any]]:
    """Parse the output of `nvidia-smi` for the query above: MiB and percent, `[N/A]` where a card does not report it."""
    for row in csv.reader(table.splitlines(), skipinitialspace=True):
        if len(row) != len(_NVIDIA):
            continue
        name, total, used, busy, driver = row
        yield {
            "vendor": "NVIDIA",
            "product": name,
            "vram_total_bytes": _count(total) * _MIB,
            "vram_used_bytes": _count(used) * _MIB,
            "utilization_percent": _count(busy),
            "driver": driver,
        }


def _cards(drm: Path) -> Iterable[dict[str, Any]]:
    for card in sorted(drm.glob("card[0-9]*")):
        vendor = _text(card / "device/vendor").strip()
        if not vendor:
            continue
        yield {
            "vendor": _VENDORS.get(vendor, vendor),
            "product": _text(card / "device/product_name").strip()
            or _text(card / "device/device").strip(),
            "vram_total_bytes": _count(_text(card / "device/mem_info_vram_total").strip()),
            "vram_used_bytes": _count(_text(card / "device/mem_info_vram_used").strip()),
            "utilization_percent": _count(_text(card / "device/gpu_busy_percent").strip()),
            "driver": (card / "device/driver").resolve().name
            if (card / "device/driver").exists()
            else "",
        }


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
