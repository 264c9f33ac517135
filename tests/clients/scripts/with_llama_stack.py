"""Script that reports what Llama Stack's client gets from a node. The client puts OpenAI's paths behind `/v1/openai`."""

import httpx
import llama_stack_client
from asked import BREAKER, CALLER, KEY, MESSAGES, NOBODY, NODE, SHORT, TALKER, TOOL, refusal, tell
from llama_stack_client import LlamaStackClient

client = LlamaStackClient(base_url=NODE, api_key=KEY, max_retries=0)
chats = client.chat.completions

whole = chats.create(model=TALKER, messages=MESSAGES, max_tokens=SHORT)
stream = chats.create(model=TALKER, messages=MESSAGES, max_tokens=SHORT, stream=True)
pieces = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
offered = {"model": CALLER, "messages": MESSAGES, "tools": [TOOL], "tool_choice": "required"}
[call] = chats.create(**offered).choices[0].message.tool_calls
parts = [
    part.function
    for chunk in chats.create(stream=True, **offered)
    for choice in chunk.choices
    for part in choice.delta.tool_calls or ()
]

tell(
    models=[model.id for model in client.models.list()],
    chat=whole.choices[0].message.content,
    stream=pieces,
    tools=[
        {"name": call.function.name, "arguments": call.function.arguments},
        {
            "name": "".join(part.name or "" for part in parts),
            "arguments": "".join(part.arguments or "" for part in parts),
        },
    ],
    unknown=refusal(
        llama_stack_client.NotFoundError, lambda: chats.create(model=NOBODY, messages=MESSAGES)
    ),
    broken=refusal(
        httpx.RemoteProtocolError,
        lambda: list(chats.create(model=BREAKER, messages=MESSAGES, stream=True)),
    ),
)
