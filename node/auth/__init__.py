"""Authentication and authorization: who calls this node, and what they may do."""
