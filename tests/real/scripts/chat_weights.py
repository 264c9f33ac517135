"""Program that makes a chat model that says anything at all: a tiny Llama with random weights and a token for each letter.

It runs in the environment of `transformers`, and is given the folder to write to.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BEGIN, END = "<s>", "</s>"
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
LONGEST = 2048


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that knows ASCII, letter by letter: whatever the model draws can be read."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = [*map(chr, range(0x21, 0x7F)), "Ġ", "Ċ"]
    trainer = trainers.BpeTrainer(special_tokens=[BEGIN, END], initial_alphabet=alphabet)
    inner.train_from_iterator([], trainer)
    outer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=BEGIN, eos_token=END, pad_token=END
    )
    outer.chat_template = TEMPLATE
    return outer


def main(folder: str) -> None:
    """Write the tokenizer and the weights."""
    torch.manual_seed(0)
    own_tokenizer = tokenizer()
    own_tokenizer.save_pretrained(folder)
    shape = LlamaConfig(
        vocab_size=len(own_tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=LONGEST,
        bos_token_id=own_tokenizer.bos_token_id,
        eos_token_id=own_tokenizer.eos_token_id,
        pad_token_id=own_tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(shape)
    # The end is never the likeliest token, so an answer is as long as it may be.
    model.lm_head.weight.data[: len([BEGIN, END])] = 0
    model.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
