"""Provider of batches: files of requests that are answered in the background, in order and each once."""
