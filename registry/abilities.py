"""Abilities of a model as its worker says them, and the protocols that its node passes on as they are.

A few bits of a record; none of them: nobody said.
"""

from enum import IntFlag


class Ability(IntFlag):
    """What goes in, what comes out, whether it calls tools, and which protocol its worker speaks besides OpenAI's."""

    NOT_SAID = 0
    TEXT_IN = 1
    IMAGE_IN = 2
    AUDIO_IN = 4
    VIDEO_IN = 8
    TEXT_OUT = 16
    IMAGE_OUT = 32
    AUDIO_OUT = 64
    VIDEO_OUT = 128
    TOOLS = 256
    TGI = 512
    LLAMA_STACK = 1024
    LOCALAI = 2048
    REMOTELLM = 4096
    OWN_PATH = 8192


INPUTS = Ability.TEXT_IN | Ability.IMAGE_IN | Ability.AUDIO_IN | Ability.VIDEO_IN
OUTPUTS = Ability.TEXT_OUT | Ability.IMAGE_OUT | Ability.AUDIO_OUT | Ability.VIDEO_OUT
PROTOCOLS = Ability.TGI | Ability.LLAMA_STACK | Ability.LOCALAI | Ability.REMOTELLM
"""What nodes know by themselves; no worker says it. So is `OWN_PATH`: the worker serves the kinds of its type alone."""


def taken(abilities: int) -> list[str]:
    """Name what goes in: `text`, `image`, `audio`, `video`; nothing where nobody said."""
    return _named(abilities, INPUTS)


def given(abilities: int) -> list[str]:
    """Name what comes out, by the same words."""
    return _named(abilities, OUTPUTS)


def _named(abilities: int, among: Ability) -> list[str]:
    found = Ability(abilities & among)
    return [str(one.name).partition("_")[0].lower() for one in found]
