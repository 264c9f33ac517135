"""Provider of vector stores: texts that are searched by meaning, with embeddings of any node."""
