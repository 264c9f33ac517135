"""Script that reports what OpenAI's own client for Python gets from a node."""

import openai
from asked import (
    BEGINNING,
    BREAKER,
    CALLER,
    KEY,
    LISTENER,
    MESSAGES,
    NOBODY,
    NODE,
    PROMPT,
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

client = openai.OpenAI(base_url=f"{NODE}/v1", api_key=KEY, max_retries=0)
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
# The client asks for base64 by itself, and decodes it.
vectors = client.embeddings.create(model=READER, input=["a vine", "a car"])
completion = client.completions.create(model=TALKER, prompt=BEGINNING, max_tokens=SHORT)

answers = {"model": TALKER, "input": PROMPT, "max_output_tokens": SHORT}
response = client.responses.create(**answers)
events = client.responses.create(stream=True, **answers)
deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
tool = {"type": "function", "strict": False, **TOOL["function"]}
asking = {"model": CALLER, "input": PROMPT, "tools": [tool], "tool_choice": "required"}
with client.responses.stream(**asking) as stream:
    called = [client.responses.create(**asking), stream.get_final_response()]
asked = [item for response in called for item in response.output if item.type == "function_call"]

speech = client.audio.speech.create(model=SPEAKER, voice=VOICE, input=SPEECH, response_format="wav")
file = ("said.wav", speech.content, "audio/wav")
heard = client.audio.transcriptions.create(model=LISTENER, file=file)

tell(
    models=[model.id for model in client.models.list()],
    chat=whole.choices[0].message.content,
    stream=pieces,
    completion=completion.choices[0].text,
    tools=[
        {"name": call.function.name, "arguments": call.function.arguments},
        {
            "name": "".join(part.name or "" for part in parts),
            "arguments": "".join(part.arguments or "" for part in parts),
        },
    ],
    responses={
        "text": response.output_text,
        "deltas": deltas,
        "calls": [{"name": call.name, "arguments": call.arguments} for call in asked],
    },
    embeddings=[row.embedding for row in vectors.data],
    speech=heard.text,
    unknown=refusal(openai.NotFoundError, lambda: chats.create(model=NOBODY, messages=MESSAGES)),
    broken=refusal(
        openai.APIError, lambda: list(chats.create(model=BREAKER, messages=MESSAGES, stream=True))
    ),
)
