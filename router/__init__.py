"""Routing of requests, and the protocols of the workers that answer them."""
