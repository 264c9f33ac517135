"""Provider of vector stores: texts that are found by their meaning, with embeddings of any node."""
