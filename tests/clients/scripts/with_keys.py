"""Script that reports what a client raises for each key. `with_keys.py CLIENT NODE` reads {case: [key, model]} from its input."""

import json
import sys
from collections.abc import Callable

CLIENT, NODE = sys.argv[1:]
MESSAGES = [{"role": "user", "content": "hello"}]
SHORT = 4
NONE = "sk-none"


def openai(key: str, model: str) -> object:
    """Ask as OpenAI's client does."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{NODE}/v1", api_key=key or NONE, max_retries=0)
    return client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=SHORT)


def anthropic(key: str, model: str) -> object:
    """Ask as Anthropic's client does."""
    from anthropic import Anthropic

    client = Anthropic(base_url=NODE, api_key=key or NONE, max_retries=0)
    return client.messages.create(model=model, messages=MESSAGES, max_tokens=SHORT)


def text_generation(key: str, model: str) -> object:
    """Ask as the client of Text Generation Inference does."""
    from text_generation import Client

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = Client(f"{NODE}/tgi/keys/{model}", headers=headers, timeout=30)
    return client.generate("hello", max_new_tokens=SHORT)


def huggingface_hub(key: str, model: str) -> object:
    """Ask as Hugging Face's client does where a node speaks Text Generation Inference."""
    from huggingface_hub import InferenceClient

    client = InferenceClient(f"{NODE}/tgi/keys/{model}", token=key or None, timeout=30)
    return client.text_generation("hello", max_new_tokens=SHORT, details=True)


ASK: dict[str, Callable[[str, str], object]] = {
    "openai": openai,
    "anthropic": anthropic,
    "text-generation": text_generation,
    "huggingface-hub": huggingface_hub,
}

raised: dict[str, dict[str, str]] = {}
for case, (key, model) in json.load(sys.stdin).items():
    try:
        ASK[CLIENT](key, model)
    except Exception as error:  # noqa: BLE001 (which it is, the test wants to know)
        raised[case] = {"class": type(error).__name__, "words": str(error)}
    else:
        raised[case] = {"class": "", "words": ""}
sys.stdout.write(json.dumps(raised) + "\n")
