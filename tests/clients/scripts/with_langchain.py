"""Script that reports what LangChain gets from a node through `langchain-openai`."""

import functools
import operator

import openai
from asked import (
    BREAKER,
    CALLER,
    KEY,
    NOBODY,
    NODE,
    PROMPT,
    READER,
    SHORT,
    TALKER,
    TOOL,
    refusal,
    tell,
)
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

place = {"base_url": f"{NODE}/v1", "api_key": KEY, "max_retries": 0}
talker = ChatOpenAI(model=TALKER, max_tokens=SHORT, **place)
responding = ChatOpenAI(model=TALKER, max_tokens=SHORT, use_responses_api=True, **place)
deltas = [part.get("text", "") for piece in responding.stream(PROMPT) for part in piece.content]
# Otherwise the client cuts texts into tokens itself, with tables that it downloads.
reader = OpenAIEmbeddings(model=READER, check_embedding_ctx_length=False, **place)


def calls(**more: object) -> list[dict[str, object]]:
    """Have a tool called, whole and in a stream."""
    caller = ChatOpenAI(model=CALLER, **place, **more).bind_tools([TOOL], tool_choice="required")
    # Pieces of a message are added up.
    streamed = functools.reduce(operator.add, caller.stream(PROMPT))
    tool_calls = [*caller.invoke(PROMPT).tool_calls, *streamed.tool_calls]
    return [{"name": call["name"], "arguments": call["args"]} for call in tool_calls]


tell(
    chat=talker.invoke(PROMPT).content,
    stream=[piece.content for piece in talker.stream(PROMPT)],
    tools=calls(),
    responses={
        "text": responding.invoke(PROMPT).text,
        "deltas": deltas,
        "calls": calls(use_responses_api=True),
    },
    embeddings=reader.embed_documents(["a vine", "a car"]),
    unknown=refusal(openai.NotFoundError, lambda: ChatOpenAI(model=NOBODY, **place).invoke(PROMPT)),
    broken=refusal(
        openai.APIError, lambda: list(ChatOpenAI(model=BREAKER, **place).stream(PROMPT))
    ),
)
