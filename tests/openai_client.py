"""OpenAI's own client, many times over: it reads the system's certificates each time, which takes longer than most tests."""

import ssl

import openai

_TLS = ssl.create_default_context()


def openai_client(base_url: str, *, api_key: str = "x", timeout: float = 60) -> openai.AsyncOpenAI:
    """Return a client of an address, which tries nothing again."""
    http = openai.DefaultAsyncHttpxClient(verify=_TLS)
    return openai.AsyncOpenAI(
        base_url=base_url, api_key=api_key, max_retries=0, timeout=timeout, http_client=http
    )
