"""Services built on inference that run beside a node: `modelvine provide`. A crash does not affect models."""
