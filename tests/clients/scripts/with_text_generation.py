"""Script that reports what the client of Text Generation Inference gets from a node. Models stand in the path."""

import text_generation
from asked import BEGINNING, BREAKER, MESSAGES, NOBODY, NODE, SHORT, TALKER, refusal, tell
from text_generation.errors import IncompleteGenerationError, ValidationError


def client(model: str) -> text_generation.Client:
    """Return a client of one model."""
    return text_generation.Client(f"{NODE}/tgi/clients/{model}", timeout=30)


def read(model: str) -> list[str]:
    """Read a stream to its end."""
    events = client(model).generate_stream(BEGINNING, max_new_tokens=SHORT)
    return [event.token.text for event in events]


whole = client(TALKER).generate(BEGINNING, max_new_tokens=SHORT)

tell(
    chat=client(TALKER).chat(MESSAGES, max_tokens=SHORT).choices[0].message.content,
    stream=read(TALKER),
    completion=whole.generated_text,
    logprobs=[[token.text, token.logprob] for token in whole.details.tokens],
    unknown=refusal(ValidationError, lambda: read(NOBODY)),
    broken=refusal(IncompleteGenerationError, lambda: read(BREAKER)),
)
