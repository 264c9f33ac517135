"""Facts of this machine, gathered for `node.diagnosis.machine`: files, ports, the kernel's clock, certificates.

Nothing is changed: no file is created and no lock is taken. That something cannot be read is a fact, too.
"""

import asyncio
import ctypes
import os
import resource
import shutil
import socket
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from cryptography import x509

from node.config.addresses import HostPort, host_port
from node.config.paths import CONTROL_TOKEN, DATABASE, IDENTITY_KEY
from node.config.settings import Settings
from node.diagnosis.machine import Directory, KernelClock, Port, TlsFacts, UnresponsiveNode
from node.errors import SecretRefused
from node.listeners import MAX_OPEN_FILES
from node.peers.reach import host_of
from node.runtime import LOCK_FILE
from node.secrets import identity
from node.tls import Certificate
from registry.errors import StoreUnavailable, listen_error_text
from registry.records import PeerId
from registry.store import Space, open_store

DIAL_SECONDS = 3.0
"""Seconds that a connection to an address to join may take."""

DIALS_AT_ONCE = 8
MAX_CERTIFICATE_BYTES = 1024 * 1024
_LISTENS = "0A"  # include/net/tcp_states.h: TCP_LISTEN
_UNSYNCHRONISED = 0x0040  # linux/timex.h: STA_UNSYNC
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared with, never bound


def directory(path: Path) -> Directory:
    """Return the facts of the data directory, and of the free space on its disk."""
    user = os.geteuid()
    try:
        status = path.stat()
    except FileNotFoundError:
        above = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
        can = os.access(above, os.W_OK | os.X_OK)
        return Directory(str(path), exists=False, writable=can, user=user)
    except NotADirectoryError:
        return Directory(str(path), is_directory=False, user=user)
    except OSError:
        # A parent directory cannot be entered.
        return Directory(str(path), readable=False, writable=False, owner=-1, user=user)
    return Directory(
        str(path),
        is_directory=stat.S_ISDIR(status.st_mode),
        readable=os.access(path, os.R_OK | os.X_OK),
        writable=os.access(path, os.W_OK) and not _read_only(path),
        owner=status.st_uid,
        user=user,
        mode=stat.S_IMODE(status.st_mode),
        free=shutil.disk_usage(path).free,
    )


def _read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def describe_secret(path: Path) -> str:
    """Describe a secret without a problem: whether it exists yet."""
    try:
        exists = path.exists()
    except OSError:
        exists = False
    whose = (
        "is valid, and readable only by its owner" if exists else "is created when the node starts"
    )
    return f"{path.name} {whose}"


def secret_problem(read: Callable[[Path], object], path: Path) -> str:
    """Return why `read` refuses the secret at a path; empty if it is valid, or does not exist yet."""
    try:
        read(path)
    except FileNotFoundError:
        return ""
    except SecretRefused as error:
        return str(error)
    return ""


def secrets_of(settings: Settings, data_dir: Path) -> list[str]:
    """Return the readable secrets on this machine, so that they can be redacted from what leaves it."""
    files = [
        data_dir / IDENTITY_KEY,
        data_dir / CONTROL_TOKEN,
        *map(Path, filter(None, (settings.node.swarm_key, settings.faces.localai_keys))),
        *map(Path, filter(None, (settings.faces.remotellm_keys,))),
    ]
    values: list[str] = []
    for file in files:
        try:
            with file.open("rb") as opened:
                lines = opened.read(MAX_CERTIFICATE_BYTES).decode(errors="replace").split()
        except OSError:
            continue
        values += [line for line in lines if not line.startswith("/")]
    return values


def open_files_limit() -> int:
    """Return how many open files a node of this user may have: the hard limit, up to which it raises its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else hard


def ports(settings: Settings) -> list[Port]:
    """Try to listen on each port that a node of these settings would listen on."""
    endpoints = [("node.http (--http)", host_port(settings.node.http))]
    if settings.node.link:
        endpoints.append(("node.link (--link)", host_port(settings.node.link)))
    for address in settings.mesh.listen:
        endpoint = HostPort(host_of(address), int(address.rpartition("/")[2]))
        endpoints.append(("mesh.listen (--listen)", endpoint))
    return [_port(setting, endpoint) for setting, endpoint in endpoints if endpoint.port]


def _port(setting: str, address: HostPort) -> Port:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        socket.create_server((address.host, address.port), family=family).close()
    except OSError as error:
        problem = listen_error_text(str(address), setting, error)
        return Port(setting, str(address), problem, holder_of(address))
    return Port(setting, str(address))


def holder_of(address: HostPort) -> str:
    """Return which process, or which user's, listens at a place of this machine; empty if the kernel does not tell."""
    for table in ("tcp", "tcp6"):
        for row in _text(f"/proc/net/{table}").splitlines()[1:]:
            fields = row.split()
            local, state, uid, inode = fields[1], fields[3], fields[7], fields[9]
            if state == _LISTENS and int(local.rpartition(":")[2], 16) == address.port:
                return _process_with(f"socket:[{inode}]") or f"a process of user {uid}"
    return ""


def _process_with(name: str) -> str:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            links = (os.readlink(link) for link in (entry / "fd").iterdir())  # noqa: PTH115
            if any(link == name for link in links):
                return f"process {entry.name} ({_text(entry / 'comm').strip()})"
        except OSError:
            continue
    return ""


def absence(data_dir: Path, why: str, left: int | None) -> UnresponsiveNode:
    """Return the facts of a node that does not answer: the holder of its directory, and whether the pid in `node.json` lives."""
    return UnresponsiveNode(why, lock=lock_holder(data_dir), left=left, left_lives=bool(left and _is_running(left)))  # fmt: skip


def lock_holder(data_dir: Path) -> int | None:
    """Return the pid of a directory's node from the kernel's list of locks; trying the lock could hinder a starting node."""
    try:
        status = (data_dir / LOCK_FILE).stat()
    except OSError:
        return None
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for row in _text("/proc/locks").splitlines():
        fields = row.split()
        if device in fields and "FLOCK" in fields:
            return int(fields[fields.index("FLOCK") + 3])
    return None


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


class _Timex(ctypes.Structure):
    """The first fields of `struct timex` (adjtimex(2)), and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("max_error", ctypes.c_long),
        ("estimated_error", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


def kernel_clock() -> KernelClock:
    """Ask the kernel whether its clock is synchronised; set nothing."""
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return KernelClock(None)
    if state < 0:
        return KernelClock(None)
    return KernelClock(not timex.status & _UNSYNCHRONISED, timex.max_error / 1e6)


def certificate(path: str, key: str) -> TlsFacts:
    """Read the certificate of the HTTP face, the first in its file, and try it with its key."""
    try:
        with Path(path).open("rb") as file:
            parsed = x509.load_pem_x509_certificate(file.read(MAX_CERTIFICATE_BYTES))
    except OSError as error:
        return TlsFacts(path, problem=f"{path} cannot be read: {error.strerror}")
    except ValueError:
        return TlsFacts(path, problem=f"{path} contains no PEM certificate")
    try:
        Certificate(Path(path), Path(key))
    except OSError as error:
        return TlsFacts(path, problem=str(error))
    names: list[str] = []
    try:
        more = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names += more.get_values_for_type(x509.DNSName)
        names += map(str, more.get_values_for_type(x509.IPAddress))
    except x509.ExtensionNotFound:
        pass
    begins, ends = parsed.not_valid_before_utc.timestamp(), parsed.not_valid_after_utc.timestamp()
    return TlsFacts(path, begins, ends, names)


def own_names(settings: Settings) -> list[str]:
    """Return the names and addresses by which callers may reach a node of these settings."""
    address = host_port(settings.node.http)
    listens = [] if address.host in _EVERYWHERE else [address.host]
    announced = [host for host in map(host_of, settings.mesh.announce) if host]
    return [*settings.web.names, *announced, socket.gethostname(), *listens, "localhost"]


def bootstrap_dials(settings: Settings) -> list[tuple[str, str]]:
    """Connect to each address to join, by TCP alone; return each with the reason of a failure, empty if it accepts."""
    addresses = settings.mesh.bootstrap
    with ThreadPoolExecutor(DIALS_AT_ONCE) as pool:
        return [*zip(addresses, pool.map(_dial_failure, addresses), strict=True)]


def _dial_failure(address: str) -> str:
    parts = address.split("/")
    try:
        with closing(socket.create_connection((parts[2], int(parts[4])), DIAL_SECONDS)):
            return ""
    except TimeoutError:
        return "timed out"
    except socket.gaierror:
        return "the name does not resolve"
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()


def store_error(settings: Settings, data_dir: Path) -> str:
    """Open the store as a node would, read from it, and return the error; a database that does not exist yet is none."""
    kind, _, location = settings.node.store.partition(":")
    if kind == "sqlite":
        file = data_dir / (location or DATABASE)
        try:
            if file.stat().st_uid != os.geteuid():
                return f"{file} belongs to user {file.stat().st_uid}: run this as that user"
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{file} cannot be read: {error.strerror}"
    try:
        asyncio.run(_read(settings, data_dir))
    except (StoreUnavailable, ValueError) as error:
        return str(error)
    return ""


async def _read(settings: Settings, data_dir: Path) -> None:
    try:
        node = identity.load(data_dir).peer
    except (FileNotFoundError, SecretRefused):
        node = PeerId("")
    store = open_store(settings.node.store, data_dir=data_dir, node=node)
    try:
        await store.read(Space.MARKS)
    finally:
        await store.close()


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
