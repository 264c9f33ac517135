"""Several processes that serve as one node: the first is the node; helpers answer requests for models beside it.

The first has the mesh, the registry, the store and the control interface. A helper has none of them: it is told over a socket
pair what a router needs to know, and passes on whatever is not a request for a model. `protocol` says what they tell each other;
`first`, `session` and `loans` are the first's side; `helper`, `view` and `borrowing` a helper's. One process needs none of it.
"""
