"""Several processes that serve as one node: the first is the node; helpers answer requests beside it.

The first process has the mesh, the registry, the store and the control interface. A helper has none of them: it receives over a
socket pair what a router needs to know, and passes on every request that is not for a model. `protocol` defines the messages;
`first` and `session` are the first process's side; `helper`, `assembly` and `world` are a helper's side; `forward` has the
connections between them.

A node of one process needs none of this: only `node.run` imports this folder, and only for several processes.
"""
