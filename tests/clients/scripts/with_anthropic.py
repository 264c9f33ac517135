"""Script that reports what Anthropic's client gets from a node."""

import anthropic
from asked import BREAKER, CALLER, KEY, MESSAGES, NOBODY, NODE, SHORT, TALKER, TOOL, refusal, tell

client = anthropic.Anthropic(base_url=NODE, api_key=KEY, max_retries=0)


def read(model: str) -> list[str]:
    """Read a stream to its end."""
    with client.messages.stream(model=model, messages=MESSAGES, max_tokens=SHORT) as stream:
        return list(stream.text_stream)


whole = client.messages.create(model=TALKER, messages=MESSAGES, max_tokens=SHORT)
function = TOOL["function"]
tool = {
    "name": function["name"],
    "description": function["description"],
    "input_schema": function["parameters"],
}
asking = {
    "model": CALLER,
    "messages": MESSAGES,
    "max_tokens": SHORT,
    "tools": [tool],
    "tool_choice": {"type": "any"},
}
with client.messages.stream(**asking) as stream:
    called = [client.messages.create(**asking), stream.get_final_message()]
calls = [block for message in called for block in message.content if block.type == "tool_use"]

tell(
    models=[model.id for model in client.models.list()],
    chat=whole.content[0].text,
    stream=read(TALKER),
    tools=[{"name": call.name, "arguments": call.input} for call in calls],
    tokens=client.messages.count_tokens(model=TALKER, messages=MESSAGES).input_tokens,
    unknown=refusal(anthropic.NotFoundError, lambda: read(NOBODY)),
    broken=refusal(anthropic.APIError, lambda: read(BREAKER)),
)
