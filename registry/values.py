"""Values: immutable dataclasses. For the hot path, only the type checker enforces this, not the run time.

A frozen dataclass sets each of its fields in a roundabout way, which takes four times as long.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Value = TypeVar("_Value")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_class(made: type[_Value]) -> type[_Value]:
    """Make a class a dataclass with slots, equal and hashed by its fields, that is frozen to the type checker."""
    return dataclass(slots=True, unsafe_hash=True)(made)
