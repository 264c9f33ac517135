"""OpenAI's wire format: bodies, forms and event streams, read and written with every other byte left as it came."""
