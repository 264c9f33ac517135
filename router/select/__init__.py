"""Selection: the candidates of a request, their order, and the number of attempts. Pure."""
