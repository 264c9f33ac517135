"""Parser for training rows, one per line: Llama Stack's `TrainingDataItem`, or OpenAI's `{"messages": […]}`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass


class Unusable(ValueError):
    """Submitted data that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a dialog, and whether the model is to learn it."""

    role: str
    text: str
    learnt: bool = True


Dialog = tuple[Said, ...]


def dialogs_of(lines: bytes) -> list[Dialog]:
    """Read rows; raise `Unusable` at the first invalid one, or if there are none."""
    rows = [_dialog(n, line) for n, line in enumerate(lines.splitlines(), 1) if line.strip()]
    if not rows:
        raise Unusable("there are no rows to train on")
    return rows


def _dialog(number: int, line: bytes) -> Dialog:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise Unusable(f"row {number} is not JSON") from error
    match row:
        case {"dialog": [_, *_] as messages, "keep_loss": [*kept]} if len(kept) == len(messages):
            return _messages(number, messages, kept)
        case {"dialog": [_, *_] as messages} | {"messages": [_, *_] as messages} if (
            "keep_loss" not in row
        ):
            return _messages(number, messages, [True] * len(messages))
    raise Unusable(f"row {number} is no dialog")


def _messages(number: int, messages: Sequence[object], kept: Sequence[object]) -> Dialog:
    dialog: list[Said] = []
    for message, learnt in zip(messages, kept, strict=True):
        match message:
            case {"role": str(role), "text": str(text)} | {"role": str(role), "content": str(text)}:
                dialog.append(Said(role, text, bool(learnt)))
            case _:
                raise Unusable(f"row {number} has a message without a role or a text")
    return tuple(dialog)
