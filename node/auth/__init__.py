"""Authentication and authorization: the identity of a caller, and what the caller may do."""
