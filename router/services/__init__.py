"""Services that are no models, such as batches and vector stores: what they may be asked, and the ids of what they keep."""
