"""Secrets on disk: the node's identity, its control token, and the keys of gRPC faces."""
