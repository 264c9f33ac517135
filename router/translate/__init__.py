"""Translation between OpenAI's protocol and workers of other protocols: requests, answers, streams, templates."""
