"""Provider of batches: files of requests that are answered in the background, each once, with results in their order."""
