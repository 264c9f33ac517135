"""Script that reports what Hugging Face's `InferenceClient` gets from a node over TGI's protocol. Models stand in the path."""

from asked import BEGINNING, BREAKER, NOBODY, NODE, SHORT, TALKER, refusal, tell
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError, TextGenerationError


def read(model: str) -> list[str]:
    """Read a stream to its end."""
    # The client closes the stream when nothing refers to the client any more.
    client = InferenceClient(f"{NODE}/tgi/clients/{model}", timeout=30)
    return list(client.text_generation(BEGINNING, max_new_tokens=SHORT, stream=True))


client = InferenceClient(f"{NODE}/tgi/clients/{TALKER}", timeout=30)
whole = client.text_generation(BEGINNING, max_new_tokens=SHORT, details=True)

tell(
    completion=whole.generated_text,
    logprobs=[[token.text, token.logprob] for token in whole.details.tokens],
    stream=read(TALKER),
    unknown=refusal((HfHubHTTPError, TextGenerationError), lambda: read(NOBODY)),
    broken=refusal(TextGenerationError, lambda: read(BREAKER)),
)
