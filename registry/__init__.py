"""Registry of the nodes that serve each model: signed records, their merge, their spread, and what is durable."""
