"""Script that reports what LiteLLM gets from a node."""

import litellm
from asked import (
    BREAKER,
    CALLER,
    KEY,
    LISTENER,
    MESSAGES,
    NOBODY,
    NODE,
    READER,
    SHORT,
    SPEAKER,
    SPEECH,
    TALKER,
    TOOL,
    VOICE,
    refusal,
    tell,
)

place = {"api_base": f"{NODE}/v1", "api_key": KEY, "num_retries": 0}


def chat(model: str, **more: object) -> litellm.ModelResponse:
    """Ask a model; `openai/` tells LiteLLM which protocol the node speaks."""
    return litellm.completion(model=f"openai/{model}", messages=MESSAGES, **place, **more)


stream = chat(TALKER, max_tokens=SHORT, stream=True)
pieces = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
offered = {"tools": [TOOL], "tool_choice": "required"}
[call] = chat(CALLER, **offered).choices[0].message.tool_calls
called = litellm.stream_chunk_builder(list(chat(CALLER, stream=True, **offered)))
[streamed] = called.choices[0].message.tool_calls
vectors = litellm.embedding(
    model=f"openai/{READER}", input=["a vine", "a car"], encoding_format="float", **place
)

speech = litellm.speech(
    model=f"openai/{SPEAKER}", voice=VOICE, input=SPEECH, response_format="wav", **place
)
file = ("said.wav", speech.content, "audio/wav")
heard = litellm.transcription(model=f"openai/{LISTENER}", file=file, **place)

tell(
    chat=chat(TALKER, max_tokens=SHORT).choices[0].message.content,
    stream=pieces,
    tools=[
        {"name": one.function.name, "arguments": one.function.arguments} for one in (call, streamed)
    ],
    embeddings=[row["embedding"] for row in vectors.data],
    speech=heard.text,
    unknown=refusal(litellm.NotFoundError, lambda: chat(NOBODY)),
    broken=refusal(
        litellm.exceptions.MidStreamFallbackError, lambda: list(chat(BREAKER, stream=True))
    ),
)
