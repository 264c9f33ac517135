"""Program that runs RemoteLLM's own server with its own wrapper of GPT-Neo, tiny and with random weights.

It is given a folder for its keys and a port, and prints a line with its address and the key it wants. The package's wrapper takes
the first GPU for granted; that is the only thing done differently here.
"""

import asyncio
import os
import sys
import time

import torch
from chat_weights import LONGEST, tokenizer
from grpclib.server import Server
from remote_llm.gpt_neo_wrap import GPTNeoWrap
from remote_llm.keystore import ApiKeystore
from remote_llm.schema import LLMResult
from remote_llm.server import LLMService
from transformers import GPTNeoConfig, GPTNeoForCausalLM, TextGenerationPipeline

NAME = "tiny-neo"
TOKENS = 20
ALTERNATIVES = 2
SLOWLY, SECONDS = "slowly", 15


class Neo(GPTNeoWrap):
    """The wrapper, on a CPU."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        own_tokenizer = tokenizer()
        shape = GPTNeoConfig(
            vocab_size=len(own_tokenizer),
            hidden_size=32,
            num_layers=2,
            attention_types=[[["global"], 2]],
            num_heads=2,
            max_position_embeddings=LONGEST,
            bos_token_id=own_tokenizer.bos_token_id,
            # A text is as long as it may be.
            eos_token_id=None,
            pad_token_id=own_tokenizer.pad_token_id,
        )
        shape._name_or_path = NAME
        self.model = GPTNeoForCausalLM(shape)
        self.tokenizer = own_tokenizer
        self.generator = TextGenerationPipeline(self.model, own_tokenizer, device="cpu")
        self.max_new_tokens = TOKENS
        self.num_sequences = ALTERNATIVES

    def generate(self, prompts: list[str], stop: list[str] | None = None) -> LLMResult:
        """Generate texts; as slowly as a large model does if a prompt says so."""
        if any(SLOWLY in prompt for prompt in prompts):
            time.sleep(SECONDS)
        return super().generate(prompts, stop)


async def main(folder: str) -> None:
    """Serve until the process ends."""
    keys = ApiKeystore(f"sqlite:///{folder}/keys.db")
    key = keys.add_key(name="modelvine") or keys.get_key(name="modelvine")
    # The libraries write empty lines of their own to standard output.
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    neo = Neo()
    server = Server([LLMService(llm=neo, keystore=keys)])
    port = int(sys.argv[2])
    await server.start("127.0.0.1", port)
    os.write(out, f"ready url=grpc+remotellm://127.0.0.1:{port} key={key}\n".encode())
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
