"""Script that reports what Hugging Face's `InferenceClient` gets from a node."""

from asked import BREAKER, CALLER, KEY, MESSAGES, NOBODY, NODE, SHORT, TALKER, TOOL, refusal, tell
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError, TextGenerationError

client = InferenceClient(base_url=f"{NODE}/v1", api_key=KEY, timeout=30)
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
    chat=whole.choices[0].message.content,
    stream=pieces,
    tools=[
        {"name": call.function.name, "arguments": call.function.arguments},
        {
            "name": "".join(part.name or "" for part in parts),
            "arguments": "".join(part.arguments or "" for part in parts),
        },
    ],
    unknown=refusal(HfHubHTTPError, lambda: chats.create(model=NOBODY, messages=MESSAGES)),
    broken=refusal(
        TextGenerationError,
        lambda: list(chats.create(model=BREAKER, messages=MESSAGES, stream=True)),
    ),
)
