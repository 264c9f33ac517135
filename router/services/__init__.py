"""Services other than models, such as batches and vector stores: their calls, and the ids of their objects."""
