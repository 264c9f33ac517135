"""Description that a worker gives of itself, parsed without trust; missing values are zero."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from registry.records import PROTOCOLS, Ability, ModelType
from registry.wire import MAX_CONTEXT, is_name
from router.workers import Worker

MAX_MODELS = 1_000
"""The most models that are read of one worker; the rest of a longer list is left."""

MAX_SOFTWARE_CHARACTERS = 64
MOST_SLOTS = 65_535
"""More requests at one time are no sensible number."""

_IN = {"text": Ability.TEXT_IN, "image": Ability.IMAGE_IN, "audio": Ability.AUDIO_IN, "video": Ability.VIDEO_IN}  # fmt: skip
_OUT = {"text": Ability.TEXT_OUT, "image": Ability.IMAGE_OUT, "audio": Ability.AUDIO_OUT, "video": Ability.VIDEO_OUT}  # fmt: skip
MODALITIES = tuple(_IN)


@dataclass(frozen=True, slots=True)
class Offered:
    """One model that a worker says it runs: how many tokens it reads and writes, what it takes and gives, and what it is for.

    `api` is where it is asked for, empty where that is where the others are; `project` is whose it is, if anybody's.
    """

    name: str
    context: int = 0
    abilities: Ability = Ability.NOT_SAID
    type: ModelType | None = None
    api: str = ""
    project: str = ""


@dataclass(frozen=True, slots=True)
class Described:
    """A worker in its own words: the program and its version, its models, how many requests it takes at one time.

    `output` is the longest answer in tokens. `limits` are other bounds that its protocol tells, under the protocol's names.
    `fault` says why it would answer nobody, such as a wrong key.
    """

    software: str = ""
    models: tuple[Offered, ...] = ()
    slots: int = 0
    output: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)
    fault: str = ""

    def of(self, worker: Worker) -> Offered:
        """Return what it says of one of its models; who runs a single one means that, under whatever name it is registered."""
        name = worker.own_model
        for wanted in (name, f"{name}:latest"):
            if found := [model for model in self.models if model.name == wanted]:
                return next((one for one in found if one.type is worker.service.type), found[0])
        return self.models[0] if len(self.models) == 1 else Offered(name)


def taught(worker: Worker, said: Offered) -> Worker:
    """Return a worker with what it said of itself, where its operator said nothing."""
    service = worker.service
    told = service.abilities & ~(PROTOCOLS | Ability.OWN_PATH)
    known = replace(
        service,
        context=service.context or said.context,
        abilities=service.abilities if told else service.abilities | int(said.abilities),
    )
    return worker if known == service else replace(worker, service=known)


def models_of(found: Iterable[Offered]) -> tuple[Offered, ...]:
    """Return models whose names can be, each once of each type."""
    models: dict[tuple[str, ModelType | None], Offered] = {}
    for model in found:
        if len(models) >= MAX_MODELS:
            break
        if model.name and is_name(model.name):
            models.setdefault((model.name, model.type), model)
    return tuple(models.values())


def count_of(said: object, most: int = MAX_CONTEXT) -> int:
    """Return a number of things, 0 for what is none."""
    if not isinstance(said, int) or isinstance(said, bool):
        return 0
    return said if 0 < said <= most else 0


def first_count(said: Mapping[str, object], *names: str) -> int:
    """Return the first of these fields that is a number of tokens, 0 where none is."""
    return next(filter(None, (count_of(said.get(name)) for name in names)), 0)


def text_of(said: object, most: int = MAX_SOFTWARE_CHARACTERS) -> str:
    """Return a short text that may be shown, `""` for what is none."""
    if not isinstance(said, str) or not said.isprintable():
        return ""
    return said.strip()[:most]


def abilities_of(inputs: object, outputs: object) -> Ability:
    """Read two lists of words such as `text` and `image`; others say nothing."""
    found = Ability.NOT_SAID
    for said, words in ((inputs, _IN), (outputs, _OUT)):
        for word in said if isinstance(said, list) else ():
            if isinstance(word, str):
                found |= words.get(word, Ability.NOT_SAID)
    return found
