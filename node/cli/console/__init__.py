"""What commands share: their options, the way to a node, and how things look in a terminal."""
