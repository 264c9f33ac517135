"""Secrets on disk: the node's identity, its control token, and the invitation that it joined with."""
