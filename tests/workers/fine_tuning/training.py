"""Training without downloaded weights: LoRA by `peft` on a tiny Llama of `transformers` with random weights.

Its tokens are bytes. It runs in its own environment.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from tests.workers.fine_tuning.data import Dialog, Unusable

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
OUTPUT = ("lm_head",)

_BEGIN, _END, _PAD = 256, 257, 258
_IGNORED = -100
"""The label that is ignored in the loss."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a training; `targets` are the layers that get an adapter."""

    epochs: int = 1
    batch: int = 4
    rate: float = 0.01
    accumulated: int = 1
    seed: int = 0
    shuffle: bool = True
    rank: int = 8
    alpha: int = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")

    def __post_init__(self) -> None:
        """Raise `Unusable` for values below 1."""
        if min(self.epochs, self.batch, self.accumulated, self.rank, self.alpha) < 1:
            raise Unusable("epochs, sizes of batches, rank and alpha are 1 or more")

    def steps(self, dialogs: int) -> int:
        """Return the number of steps for so many dialogs."""
        return self.epochs * math.ceil(dialogs / (self.batch * self.accumulated))


@dataclass(frozen=True, slots=True)
class Step:
    """One completed step; the last one of an epoch has the path of its adapter, and the loss on the held-back dialogs."""

    number: int
    epoch: int
    loss: float
    tokens: int
    adapter: Path | None = None
    held_back: float | None = None


def train(
    dialogs: Sequence[Dialog], held_back: Sequence[Dialog], plan: Plan, folder: Path
) -> Iterator[Step]:
    """Yield each step once it is completed, and write an adapter into `folder` after each epoch.

    Training stops when no further step is requested.
    """
    config = LoraConfig(
        task_type="CAUSAL_LM", r=plan.rank, lora_alpha=plan.alpha, target_modules=list(plan.targets)
    )
    base = _base()
    torch.manual_seed(plan.seed)
    order = random.Random(plan.seed)
    model = get_peft_model(base, config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate)
    per_step, number = plan.batch * plan.accumulated, 0
    for epoch in range(1, plan.epochs + 1):
        rows = [*dialogs]
        if plan.shuffle:
            order.shuffle(rows)
        for start in range(0, len(rows), per_step):
            loss, tokens = _learn(model, optimizer, rows[start : start + per_step], plan.batch)
            number += 1
            if start + per_step < len(rows):
                yield Step(number, epoch, loss, tokens)
        adapter = folder / f"step-{number}"
        # Otherwise a hub is asked whether the base has other embeddings.
        model.save_pretrained(adapter, save_embedding_layers=False)
        yield Step(
            number, epoch, loss, tokens, adapter, _loss(model, held_back) if held_back else None
        )


def loss_of(dialogs: Sequence[Dialog], adapter: Path | None = None) -> float:
    """Return the loss of the base model, or of the model that `peft` makes of it with an adapter."""
    model: torch.nn.Module = _base()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    return _loss(model, dialogs)


def _base() -> LlamaForCausalLM:
    """Return the base model, the same each time."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=_PAD + 1,
            bos_token_id=_BEGIN,
            eos_token_id=_END,
            pad_token_id=_PAD,
            hidden_size=64,
            intermediate_size=128,
            num_attention_heads=4,
            num_hidden_layers=2,
            initializer_range=0.1,
        )
    )


def _learn(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: Sequence[Dialog], batch: int
) -> tuple[float, int]:
    """Make one step; return the loss before it, and how many tokens were learnt from."""
    batches = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    total, tokens = 0.0, 0
    for examples in batches:
        ids, labels = _tensors(examples)
        loss = model(input_ids=ids, attention_mask=ids != _PAD, labels=labels).loss / len(batches)
        loss.backward()
        total += float(loss.detach())
        tokens += int((labels != _IGNORED).sum())
    optimizer.step()
    optimizer.zero_grad()
    return total, tokens


@torch.no_grad()
def _loss(model: torch.nn.Module, dialogs: Sequence[Dialog]) -> float:
    ids, labels = _tensors(dialogs)
    was = model.training
    loss = float(model.eval()(input_ids=ids, attention_mask=ids != _PAD, labels=labels).loss)
    model.train(was)
    return loss


def _tensors(dialogs: Sequence[Dialog]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dialogs as tokens and labels, padded to one length."""
    ids, labels = zip(*map(_tokens, dialogs), strict=True)

    def filled(rows: Sequence[torch.Tensor], value: int) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([*rows], batch_first=True, padding_value=value)

    return filled(ids, _PAD), filled(labels, _IGNORED)


def _tokens(dialog: Dialog) -> tuple[torch.Tensor, torch.Tensor]:
    ids: list[int] = []
    labels: list[int] = []
    for message in dialog:
        new = [_BEGIN, *f"{message.role}\n{message.text}".encode(errors="replace"), _END]
        ids += new
        labels += new if message.learnt else [_IGNORED] * len(new)
    return torch.tensor(ids), torch.tensor(labels)
