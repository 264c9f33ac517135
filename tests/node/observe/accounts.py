"""Accounts of requests that nobody made."""

from node.faces.access_log import Account
from router.requests import Kind


def account_with(**fields) -> Account:
    """An account with these fields."""
    made = Account("r-1", Kind.CHAT)
    for name, value in fields.items():
        setattr(made, name, value)
    return made
