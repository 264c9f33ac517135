"""Stub workers for tests: real servers that answer as models do, and fail on request."""
