"""What keys can be refused for.

AuthError
├── KeyMissing       no key was shown where one is needed
├── KeyUnknown       what was shown is no key of this site
├── KeyExpired       its time is over
├── KeyRevoked       an operator ended it
├── GrantRefused     a grant is damaged, forged, or not for this node
├── RoleNotAllowed   its role is for something else
├── ModelNotAllowed  it is not for this model
├── Limited
│   ├── RateExceeded   more in a minute than the key allows, or an address without one
│   ├── TooManyAtOnce  more at one time
│   └── DaySpent       more in a day
├── KeyExists        another key has this name
└── NoSuchKey        no key has this name
"""

from collections.abc import Mapping


class AuthError(Exception):
    """The root of this package's errors."""


class KeyMissing(AuthError):
    """No key was shown where one is needed."""


class KeyUnknown(AuthError):
    """What was shown is no key of this site."""


class KeyExpired(AuthError):
    """The time of the key is over."""


class KeyRevoked(AuthError):
    """An operator ended the key."""


class GrantRefused(AuthError):
    """The grant is damaged, forged, another node's, or of somebody who is not trusted here."""


class RoleNotAllowed(AuthError):
    """The role of the key is for something else."""


class ModelNotAllowed(AuthError):
    """The key is not for this model."""


class Limited(AuthError):
    """No more is allowed for now: until `retry_after` seconds have passed. `headers` say how the limits stand."""

    def __init__(self, message: str, retry_after: float, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.headers = headers


class RateExceeded(Limited):
    """More requests or tokens in a minute than the key allows, for this model or at all, or an address without one."""


class TooManyAtOnce(Limited):
    """More requests at one time than the key allows, for this model or at all, or an address without one."""


class DaySpent(Limited):
    """The tokens that the key allows in a day, for this model or at all, are spent."""


class KeyExists(AuthError):
    """Another key has this name, and opens something."""


class NoSuchKey(AuthError):
    """No key has this name."""


OF_KEYS = (KeyMissing, KeyUnknown, KeyExpired, KeyRevoked, GrantRefused)
"""What another key would mend."""
