"""Bits that say what a model takes and gives, and which other protocols its worker speaks."""

import pytest

from registry.records import INPUTS, OUTPUTS, PROTOCOLS, Ability, input_names, output_names


def test_no_bits_have_no_names() -> None:
    assert input_names(0) == output_names(0) == []


def test_inputs_and_outputs_have_the_same_words() -> None:
    assert input_names(INPUTS) == output_names(OUTPUTS) == ["text", "image", "audio", "video"]
    assert input_names(OUTPUTS | Ability.TOOLS) == output_names(INPUTS | Ability.TOOLS) == []


@pytest.mark.parametrize("newer", [1 << 14, 0xC000, PROTOCOLS, Ability.OWN_PATH])
def test_bits_of_newer_versions_say_nothing(newer: int) -> None:
    assert input_names(newer | Ability.IMAGE_IN) == ["image"]


def test_no_bit_means_two_things() -> None:
    values = [ability.value for ability in Ability]
    abilities = INPUTS | OUTPUTS | Ability.TOOLS | PROTOCOLS | Ability.OWN_PATH
    assert sum(values) == abilities.value == 16383
