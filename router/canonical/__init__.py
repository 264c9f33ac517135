"""Canonical requests: a request to a model, independent of the worker's protocol. One module per family of requests.

A request is read once, from OpenAI's body, on the worker's node. Each value is checked against a named bound; an error names
the field.
"""
