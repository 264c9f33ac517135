"""Commands for users' keys, over a node's HTTP interface: create, list, show, rotate, revoke."""

import argparse
import csv
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from node.cli.console.node_lookup import client
from node.cli.console.options import LIMITS, patterns_in
from node.cli.console.streams import shown_once
from node.cli.console.text import plain, say_fields, say_json, say_table
from node.errors import CommandFailed, WrongUsage

PATH = "/api/v1/keys"
MAX_CSV_BYTES = 2 * 1024 * 1024

COLUMNS = ("name", "models", "role", *LIMITS, "model_limit", "background", "expires")
_YES, _NO = ("yes", "true", "1"), ("", "no", "false", "0")
_TIME = re.compile(r"(\d{1,6})(m|h|d|w|y)")
_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_NEVER = ("", "never")


def create(arguments: argparse.Namespace) -> int:
    """Create one key, or those of a CSV table, and print them."""
    if bool(arguments.name) == bool(arguments.csv):
        raise WrongUsage("pass the user's name, or a table of users with --csv FILE")
    rows = _rows(Path(arguments.csv)) if arguments.csv else [{"name": arguments.name}]
    keys = [_wanted(row, arguments) for row in rows]
    created = client(arguments).post(PATH, {"keys": keys})["keys"]
    return _say_keys(created, arguments, as_csv=bool(arguments.csv))


def rotate(arguments: argparse.Namespace) -> int:
    """Replace a key."""
    created = client(arguments).post(f"{PATH}/{_named(arguments)}/rotate", {})["keys"]
    return _say_keys(created, arguments)


def revoke(arguments: argparse.Namespace) -> int:
    """Revoke a key."""
    client(arguments).post(f"{PATH}/{_named(arguments)}/revoke", {})
    if arguments.json:
        say_json({"name": arguments.name, "revoked": True})
    else:
        print(plain(f"revoked the key of {arguments.name}: it is no longer valid"))
    return 0


def show(arguments: argparse.Namespace) -> int:
    """List all keys, or show one."""
    keys: Sequence[dict[str, Any]] = client(arguments).get(PATH, holds="keys")["keys"]
    if arguments.action == "list":
        return _list(keys, as_json=arguments.json)
    selected = next((key for key in keys if key["name"] == arguments.name), None)
    if selected is None:
        raise CommandFailed(
            f"there is no key {arguments.name!r}; `modelvine key list` shows all keys"
        )
    if arguments.json:
        say_json(selected)
    else:
        say_fields(_fields(selected))
    return 0


def seconds_of(text: str) -> float:
    """Return the seconds of a time such as `30d`, 0 for never; raise `WrongUsage`."""
    if text.strip().lower() in _NEVER:
        return 0.0
    match = _TIME.fullmatch(text.strip().lower())
    if match is None or not int(match[1]):
        raise WrongUsage(
            f"--expires is {text!r}: write a time like 90m, 12h, 30d, 8w or 1y, or never"
        )
    return float(int(match[1]) * _SECONDS[match[2]])


def model_limit(text: str) -> dict[str, object]:
    """Return the limits in a text such as `llama*:rpm=60,tpm=10000`; raise `WrongUsage`."""
    # A model's name may hold a colon itself.
    pattern, _, terms = text.rpartition(":")
    limits = [part.partition("=") for part in terms.split(",")]
    names = [name.strip().replace("-", "_") for name, _, _ in limits]
    good = all(name in LIMITS for name in names) and len(set(names)) == len(names)
    if not (pattern and good and all(_is_number(value) for _, _, value in limits)):
        raise WrongUsage(
            f"--model-limit is {text!r}: write a pattern and its limits, like 'llama*:rpm=60,tpm=10000' "
            f"({', '.join(LIMITS)})"
        )
    values = (int(value) for _, _, value in limits)
    return {"model": pattern, **dict(zip(names, values, strict=True))}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _say_keys(
    created: Sequence[Mapping[str, str]], arguments: argparse.Namespace, *, as_csv: bool = False
) -> int:
    names = ", ".join(plain(key["name"]) for key in created)
    advice = f"created without being shown: {names}; `modelvine key rotate NAME` gives a new secret"
    with shown_once(advice):
        if arguments.json:
            say_json(created)
        elif as_csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerows([("name", "key"), *((key["name"], key["key"]) for key in created)])
        else:
            _say_key(created[0])
    return 0


def _say_key(created: Mapping[str, str]) -> None:
    print(plain(created["key"]), flush=True)
    # On standard error, apart from the output that a script reads.
    print(
        plain(
            f"this is the key of {created['name']}: use it like an OpenAI key; it is shown only once"
        ),
        file=sys.stderr,
    )


def _list(keys: Sequence[Mapping[str, Any]], *, as_json: bool) -> int:
    if as_json:
        say_json(keys)
        return 0
    say_table(
        ("NAME", "KEY", "ROLE", "MODELS", "LIMITS", "STATE"),
        (
            (
                k["name"],
                f"{k['hint']}…",
                k["role"],
                " ".join(k["models"]) or "all",
                _limits(k) or "none",
                _state(k),
            )
            for k in keys
        ),
        none="there are no keys: create one with `modelvine key create NAME`",
    )
    return 0


def _fields(key: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    yield "name", key["name"]
    yield "key", f"{key['hint']}…"
    yield "role", key["role"]
    yield "models", " ".join(key["models"]) or "all"
    yield "limits", _limits(key) or "none"
    yield "made", _date(key["created"])
    yield "state", _state(key)


def _limits(key: Mapping[str, Any]) -> str:
    parts = [*_numbers(key), *(["after all others"] if key.get("background") else [])]
    apart = [
        f"{limit['model']}: {', '.join(_numbers(limit))}" for limit in key.get("model_limits", ())
    ]
    return "; ".join([", ".join(parts), *apart] if parts else apart)


def _numbers(limits: Mapping[str, Any]) -> list[str]:
    templates = {
        "rpm": "{:,} requests a minute",
        "tpm": "{:,} tokens a minute",
        "tokens_per_day": "{:,} tokens a day",
        "concurrency": "{:,} concurrent",
    }
    return [text.format(limits[name]) for name, text in templates.items() if limits.get(name)]


def _state(key: Mapping[str, Any]) -> str:
    match key["state"]:
        case "active" if key["expires"]:
            return f"until {_date(key['expires'])}"
        case "revoked":
            return f"revoked {_date(key['revoked'])}"
        case "expired":
            return f"expired {_date(key['expires'])}"
    return str(key["state"])


def _date(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))


def _named(arguments: argparse.Namespace) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._@+-]{1,64}", arguments.name):
        raise WrongUsage(f"{arguments.name!r} is not the name of a key")
    return str(arguments.name)


def _rows(path: Path) -> Sequence[Mapping[str, str]]:
    """Read a CSV table of users; raise `WrongUsage` if it is not valid."""
    try:
        if path.stat().st_size > MAX_CSV_BYTES:
            raise WrongUsage(f"{path} has more than {MAX_CSV_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise WrongUsage(f"{path} is not UTF-8") from error
    except OSError as error:
        raise WrongUsage(f"{path} cannot be read: {error.strerror}") from error
    reader = csv.DictReader(text.splitlines(), restkey="more", restval="")
    unknown = set(reader.fieldnames or ()) - set(COLUMNS)
    if "name" not in (reader.fieldnames or ()) or unknown:
        also = f", not {min(unknown)!r}" if unknown else ""
        raise WrongUsage(
            f"{path} must begin with a row of column names: {', '.join(COLUMNS)}{also}"
        )
    rows = list(reader)
    for number, row in enumerate(rows, 2):
        if "more" in row:
            raise WrongUsage(f"{path}, line {number}: more values than columns")
    if not rows:
        raise WrongUsage(f"{path} names no users")
    return rows


def _wanted(row: Mapping[str, str], arguments: argparse.Namespace) -> dict[str, object]:
    """Return the request for one key: the values of its row, and the options for the rest."""
    fields: dict[str, object] = {
        "name": row["name"].strip(),
        "models": patterns_in(row.get("models", "")) or arguments.models,
        "role": row.get("role", "").strip() or arguments.role,
        "expires_in": seconds_of(row.get("expires", "").strip() or arguments.expires),
    }
    after = row.get("background", "").strip().lower()
    if after not in _YES + _NO:
        raise WrongUsage(f"{row['name']}: background is {after!r}, not yes or no")
    fields["background"] = after in _YES or arguments.background
    apart = row.get("model_limit", "").split() or arguments.model_limit
    fields["model_limits"] = [model_limit(text) for text in apart]
    for option in LIMITS:
        text = row.get(option, "").strip()
        if text and not _is_number(text):
            raise WrongUsage(f"{row['name']}: {option} is {text!r}, not a whole number")
        fields[option] = int(text) if text else getattr(arguments, option)
    return fields
