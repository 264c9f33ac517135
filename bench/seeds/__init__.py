"""Seeds: whole nodes in one process under a virtual clock, with faults by seed, and what must hold whatever happens."""
