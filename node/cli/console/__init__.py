"""Code that commands share: their options, the look-up of a node and its client, and output for terminals."""
