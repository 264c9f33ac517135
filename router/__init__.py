"""Routing of requests, and the protocols of those who answer them."""
