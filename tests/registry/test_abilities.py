"""Bits that say what a model takes and gives, and which other protocols its worker speaks."""

import pytest

from registry.records import INPUTS, OUTPUTS, PROTOCOLS, Ability, given, taken


def test_no_bits_have_no_names() -> None:
    assert taken(0) == given(0) == []


def test_inputs_and_outputs_have_the_same_words() -> None:
    assert taken(INPUTS) == given(OUTPUTS) == ["text", "image", "audio", "video"]
    assert taken(OUTPUTS | Ability.TOOLS) == given(INPUTS | Ability.TOOLS) == []


@pytest.mark.parametrize("newer", [1 << 14, 0xC000, PROTOCOLS, Ability.OWN_PATH])
def test_bits_of_newer_versions_say_nothing(newer: int) -> None:
    assert taken(newer | Ability.IMAGE_IN) == ["image"]


def test_no_bit_means_two_things() -> None:
    values = [one.value for one in Ability]
    known = INPUTS | OUTPUTS | Ability.TOOLS | PROTOCOLS | Ability.OWN_PATH
    assert sum(values) == known.value == 16383
