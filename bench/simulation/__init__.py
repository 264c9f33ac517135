"""Many nodes in one process under a virtual clock: the registry's own core, and a model of the net below it."""
