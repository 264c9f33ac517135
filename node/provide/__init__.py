"""Services built on inference, in processes of their own beside a node: `modelvine provide`. A crash does not affect models."""
