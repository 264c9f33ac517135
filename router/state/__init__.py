"""State of replicas as this node sees it: slots, load, circuits, latency, and waiting requests."""
