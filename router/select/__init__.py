"""Selection: which candidates a request has, in which order they are tried, and how often. Pure."""
