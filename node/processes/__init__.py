"""Several processes that serve as one node: the first is the node; helpers answer requests beside it.

The first has the mesh, the registry, the store and the control interface. A helper has none of them: it is told over a socket
pair what a router needs to know, and passes on whatever is not a request for a model. `protocol` says what they tell each other;
`first` and `session` are the first's side; `helper`, `assembly` and `world` a helper's; `forward` has what crosses between them.

One process needs none of it: `node.run` alone imports this folder, and a node of one process starts no helper.
"""
