"""Description that a worker gives of itself, parsed without trust; missing values are zero."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from registry.records import PROTOCOLS, Ability, ModelType
from registry.wire import MAX_CONTEXT, is_name
from router.workers import Worker

MAX_MODELS = 1_000
"""The most models that are read of one worker; the rest of a longer list is ignored."""

MAX_SOFTWARE_CHARACTERS = 64
MOST_SLOTS = 65_535
"""A larger number of requests at one time is not plausible."""

_IN = {"text": Ability.TEXT_IN, "image": Ability.IMAGE_IN, "audio": Ability.AUDIO_IN, "video": Ability.VIDEO_IN}  # fmt: skip
_OUT = {"text": Ability.TEXT_OUT, "image": Ability.IMAGE_OUT, "audio": Ability.AUDIO_OUT, "video": Ability.VIDEO_OUT}  # fmt: skip
MODALITIES = tuple(_IN)


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """One model that a worker reports: how many tokens it reads and writes, its inputs and outputs, and its purpose.

    `api` is its own address, empty if it shares that of the others; `project` is the project that it belongs to, if any.
    """

    name: str
    context: int = 0
    abilities: Ability = Ability.NOT_SAID
    type: ModelType | None = None
    api: str = ""
    project: str = ""


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """A worker as it describes itself: the program and its version, its models, how many requests it takes at one time.

    `output` is the longest answer in tokens. `limits` are other bounds that its protocol reports, under the protocol's names.
    `fault` says why it would answer no request, such as a wrong key.
    """

    software: str = ""
    models: tuple[OfferedModel, ...] = ()
    slots: int = 0
    output: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)
    fault: str = ""

    def model_of(self, worker: Worker) -> OfferedModel:
        """Return what it reports of a registered model; a worker with a single model means that one, under any name."""
        name = worker.own_model
        for alias in (name, f"{name}:latest"):
            if found := [model for model in self.models if model.name == alias]:
                return next((one for one in found if one.type is worker.service.type), found[0])
        return self.models[0] if len(self.models) == 1 else OfferedModel(name)


def complete_worker(worker: Worker, offered: OfferedModel) -> Worker:
    """Return a worker completed by what it reported of itself, where its operator registered nothing."""
    service = worker.service
    registered = service.abilities & ~(PROTOCOLS | Ability.OWN_PATH)
    completed = replace(
        service,
        context=service.context or offered.context,
        abilities=service.abilities if registered else service.abilities | int(offered.abilities),
    )
    return worker if completed == service else replace(worker, service=completed)


def models_of(reported: Iterable[OfferedModel]) -> tuple[OfferedModel, ...]:
    """Return the models with valid names, each once for each type."""
    models: dict[tuple[str, ModelType | None], OfferedModel] = {}
    for model in reported:
        if len(models) >= MAX_MODELS:
            break
        if model.name and is_name(model.name):
            models.setdefault((model.name, model.type), model)
    return tuple(models.values())


def count_of(value: object, most: int = MAX_CONTEXT) -> int:
    """Return a count from 1 to `most`, 0 for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return value if 0 < value <= most else 0


def first_count(fields: Mapping[str, object], *names: str) -> int:
    """Return the first of these fields that is a number of tokens, 0 if none is."""
    return next(filter(None, (count_of(fields.get(name)) for name in names)), 0)


def text_of(value: object, most: int = MAX_SOFTWARE_CHARACTERS) -> str:
    """Return a short printable text, `""` for anything else."""
    if not isinstance(value, str) or not value.isprintable():
        return ""
    return value.strip()[:most]


def abilities_of(inputs: object, outputs: object) -> Ability:
    """Read two lists of words such as `text` and `image`; unknown words are ignored."""
    abilities = Ability.NOT_SAID
    for listed, flags in ((inputs, _IN), (outputs, _OUT)):
        for word in listed if isinstance(listed, list) else ():
            if isinstance(word, str):
                abilities |= flags.get(word, Ability.NOT_SAID)
    return abilities
