"""OpenAI's wire format: bodies, forms and event streams, read and written without changing other bytes."""
