"""OpenAI's own client, with one TLS context for all: to read the system's certificates takes longer than most tests."""

import ssl

import openai

_TLS = ssl.create_default_context()


def openai_client(base_url: str, *, api_key: str = "x", timeout: float = 60) -> openai.AsyncOpenAI:
    """Return a client for a base URL that retries nothing."""
    http = openai.DefaultAsyncHttpxClient(verify=_TLS)
    return openai.AsyncOpenAI(
        base_url=base_url, api_key=api_key, max_retries=0, timeout=timeout, http_client=http
    )
