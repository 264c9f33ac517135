"""Errors of authentication and authorization.

AuthError
├── KeyMissing       no key was shown where one is needed
├── KeyUnknown       the key is not valid at this site
├── KeyExpired       the key has expired
├── KeyRevoked       an operator revoked the key
├── GrantRefused     a grant is damaged, forged, or not for this node
├── RoleNotAllowed   the key's role does not allow this
├── ModelNotAllowed  the key does not allow this model
├── Limited
│   ├── RateExceeded   too many requests or tokens in a minute, for a key or an address
│   ├── TooManyAtOnce  too many concurrent requests
│   └── DaySpent       too many tokens in a day
├── KeyExists        another key has this name
└── NoSuchKey        no key has this name
"""

from collections.abc import Mapping


class AuthError(Exception):
    """The root of this package's errors."""


class KeyMissing(AuthError):
    """The request has no key, and needs one."""


class KeyUnknown(AuthError):
    """The key is not valid at this site."""


class KeyExpired(AuthError):
    """The key has expired."""


class KeyRevoked(AuthError):
    """An operator revoked the key."""


class GrantRefused(AuthError):
    """The grant is damaged, forged, meant for another node, or signed by an issuer that this site does not trust."""


class RoleNotAllowed(AuthError):
    """The key's role does not allow this operation."""


class ModelNotAllowed(AuthError):
    """The key does not allow this model."""


class Limited(AuthError):
    """A limit is reached; retry after `retry_after` seconds. `headers` describe the limits."""

    def __init__(self, message: str, retry_after: float, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.headers = headers


class RateExceeded(Limited):
    """The key's or address's limit of requests or tokens per minute is reached, in total or for this model."""


class TooManyAtOnce(Limited):
    """The key's or address's limit of concurrent requests is reached, in total or for this model."""


class DaySpent(Limited):
    """The key's limit of tokens per day is reached, in total or for this model."""


class KeyExists(AuthError):
    """A valid key already has this name."""


class NoSuchKey(AuthError):
    """No key has this name."""


OF_KEYS = (KeyMissing, KeyUnknown, KeyExpired, KeyRevoked, GrantRefused)
"""Errors that another key could avoid."""
