"""API keys of users, and what each allows. Only a hash is stored: the key itself is shown once, when it is created.

A key holds 192 random bits, so it cannot be found from its plain SHA-256.
"""

import hashlib
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

PREFIX = "mv_"
"""Prefix of every key of a site; any other text is not such a key."""

KEY_BYTES = 24
HINT_CHARACTERS = 8
"""Leading characters of a key that are stored and shown, so that people recognise it; they reveal 30 of its bits."""

MAX_KEY_CHARACTERS = 128
"""The longest text that is looked up as a key."""

MAX_KEYS = 20_000
"""Most keys of one site."""

MAX_PATTERNS = 64
MAX_MODEL_LIMITS = 16
MAX_RATE = 1_000_000_000

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")

Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Rate = Annotated[int, Field(ge=0, le=MAX_RATE)]


class Role(StrEnum):
    """Role of a key: what its holder may do."""

    USER = "user"
    """Use models."""

    VIEWER = "viewer"
    """View the node's state: nodes, routes, metrics."""

    OPERATOR = "operator"
    """Both, and change the node: register, drain, create keys."""


class KeyLimits(BaseModel):
    """Limits of a key: requests and tokens a minute, tokens a day, concurrent requests; 0 for no limit."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rpm: Rate = 0
    tpm: Rate = 0
    tokens_per_day: Rate = 0
    concurrency: Rate = 0

    @property
    def limits_anything(self) -> bool:
        """Whether anything is limited."""
        return bool(self.rpm or self.tpm or self.tokens_per_day or self.concurrency)


UNLIMITED = KeyLimits()


class ModelLimit(KeyLimits):
    """Limits that all models matching a pattern share."""

    model: Pattern

    def counts(self, model: str, project: str = "") -> bool:
        """Return whether a request for a model counts, by the requested name; `project` is set if it is for one project only."""
        return _is_meant(self.model, model, project)


class Allowance(KeyLimits):
    """What a key allows; 0 and empty stand for no limit.

    `models` are shell patterns that match `MODEL` or `PROJECT/MODEL`. `expires` is Unix time. `background` says that all
    requests with the key wait behind those of other callers.
    """

    role: Role = Role.USER
    models: Annotated[tuple[Pattern, ...], Field(max_length=MAX_PATTERNS)] = ()
    model_limits: Annotated[tuple[ModelLimit, ...], Field(max_length=MAX_MODEL_LIMITS)] = ()
    background: bool = False
    expires: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    @field_validator("model_limits")
    @classmethod
    def _each_once(cls, limits: tuple[ModelLimit, ...]) -> tuple[ModelLimit, ...]:
        # Usage is counted once for each pattern.
        if len({limit.model for limit in limits}) < len(limits):
            raise ValueError("a pattern occurs twice")
        return limits


class ApiKey(Allowance):
    """One key: its name, and what it allows. `hash` is the SHA-256 of the key; times are Unix time, 0 for never."""

    name: Annotated[str, StringConstraints(pattern=rf"^(?:{NAME.pattern})$")]
    hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    hint: Annotated[str, StringConstraints(max_length=HINT_CHARACTERS)] = ""
    created: float = 0.0
    revoked: float = 0.0
    issuer: str = ""
    """For a grant, the peer id of the node of this site that signed it; `hash` is then that of the grant's id."""

    grant: str = ""

    within: "ApiKey | None" = Field(default=None, exclude=True, repr=False)
    """The grant that this one was passed on from; its terms hold as well."""

    @property
    def ancestry(self) -> "Iterator[ApiKey]":
        """This key, and all grants that it was passed on from."""
        key: ApiKey | None = self
        while key is not None:
            yield key
            key = key.within

    def allows(self, model: str) -> bool:
        """Return whether the holder may use a model, by the name in the request."""
        key: ApiKey | None = self
        while key is not None:
            if key.models and not _matches(key.models, model):
                return False
            key = key.within
        return True

    def end_reason(self, now: float) -> str:
        """Return why the key is no longer valid; empty while it is valid."""
        if self.revoked:
            return "revoked"
        return "expired" if self.expires and now >= self.expires else ""


@dataclass(frozen=True, slots=True)
class QuotaSpending:
    """What one key has spent here and other processes do not know yet: seconds of both rates, and tokens of the day `date`."""

    name: str
    requests: float
    tokens: float
    day: float
    date: int


@dataclass(frozen=True, slots=True)
class QuotaStanding:
    """Total spending of one key at all processes: seconds ahead by both rates, and tokens of the day `date`."""

    name: str
    requests: float
    tokens: float
    day: float
    date: int


def new_secret() -> str:
    """Return a new key."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_of(secret: str) -> str:
    """Return the hash by which a key is stored."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


@lru_cache(maxsize=4096)
def _matches(patterns: tuple[str, ...], model: str) -> bool:
    # The name is matched with and without its project; a model's own name may hold slashes.
    names = (model, model.partition("/")[2])
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names if name)


@lru_cache(maxsize=4096)
def _is_meant(pattern: str, model: str, project: str) -> bool:
    if project:
        return _matches((pattern,), f"{project}/{model}") or fnmatchcase(model, pattern)
    # A request without a project may get any project's model, so a limit for one project's model counts too.
    return _matches((pattern,), model) or fnmatchcase(model, pattern.partition("/")[2])
