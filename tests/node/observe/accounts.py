"""Accounts of made-up requests."""

from node.faces.access_log import Account
from router.requests import Kind


def account_with(**fields) -> Account:
    """Return an account with these fields."""
    account = Account("r-1", Kind.CHAT, 0.0)
    for name, value in fields.items():
        setattr(account, name, value)
    return account
