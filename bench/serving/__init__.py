"""What does a node do when everybody comes at once, or reads too slowly? Its behaviour in figures, beside the goals."""
