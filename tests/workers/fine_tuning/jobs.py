"""Training jobs, run one at a time, and the files that they read and write."""

import asyncio
import itertools
import re
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.workers.fine_tuning.data import Unusable, dialogs_of
from tests.workers.fine_tuning.training import Plan, Step, train

_RESULTS = "fine-tune-results"
"""The purpose of files that jobs write, in OpenAI's terms."""
_PLACE = re.compile(r"(?:https?://[^/?#]+)?/v1/files/([^/?#]+)/content")


class State(StrEnum):
    """State of a job, in Llama Stack's terms."""

    VALIDATION = "validation"
    QUEUED = "queued"
    RUNNING = "running"
    FAILED = "failed"
    SUCCESS = "success"
    CANCELLED = "cancelled"


ENDED = frozenset({State.FAILED, State.SUCCESS, State.CANCELLED})


@dataclass(frozen=True, slots=True)
class Kept:
    """A file of this server."""

    id: str
    path: Path
    purpose: str
    created: float

    @property
    def name(self) -> str:
        """The file's name without folders."""
        return self.path.name


class Files:
    """Uploaded files, files that jobs wrote, and files in one folder of the machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: dict[str, Kept] = {}
        self._numbers = itertools.count(1)

    def upload(self, name: str, purpose: str, content: bytes) -> Kept:
        """Store a file under a new id."""
        id_ = f"file-{next(self._numbers)}"
        path = self.folder / id_ / (Path(name).name or "unnamed")
        path.parent.mkdir()
        path.write_bytes(content)
        return self.keep(id_, path, purpose)

    def keep(self, id_: str, path: Path, purpose: str) -> Kept:
        """Register an existing file under an id."""
        self._kept[id_] = Kept(id_, path, purpose, time.time())
        return self._kept[id_]

    def find(self, id_: str) -> Kept | None:
        """Return the file with this id, or None."""
        return self._kept.get(id_)

    def read(self, url: str) -> bytes:
        """Return the content of a file named by its id, its URL at this server, or a `file:` URI; raise `Unusable`."""
        matched = _PLACE.fullmatch(url)
        stored = self.find(matched[1] if matched else url)
        path = stored.path if stored else Path(url.removeprefix("file://"))
        if stored is None and not (url.startswith("file://") and self._holds(path)):
            raise Unusable(f"no file is known as {url}")
        try:
            return path.read_bytes()
        except OSError as error:
            raise Unusable(f"{url} cannot be read") from error

    def _holds(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.folder.resolve())


class Wish(NamedTuple):
    """The task of a job, and the fields of its request."""

    data: str
    validation: str
    plan: Plan
    asked: dict[str, object]


class Line(NamedTuple):
    """One line of a log."""

    when: float
    text: str


class Checkpoint(NamedTuple):
    """An adapter as of one step."""

    step: Step
    when: float
    files: tuple[str, ...]


@dataclass(slots=True)
class Job:
    """One training job. It ends between two steps once `stopping` is set."""

    id: str
    wish: Wish
    created: float
    log: Path
    state: State = State.VALIDATION
    stopping: bool = False
    finished: float | None = None
    error: str = ""
    steps: int = 0
    tokens: int = 0
    lines: list[Line] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDED

    async def become(self, state: State, text: str) -> None:
        """Set the state and log a line."""
        self.state = state
        if self.over:
            self.finished = time.time()
        await self.say(text)

    async def say(self, text: str) -> None:
        """Write a line to the job's log and wake its readers."""
        async with self.news:
            self.lines.append(Line(time.time(), text))
            with self.log.open("a") as log:
                log.write(f"{text}\n")
            self.news.notify_all()

    async def lines_after(self, count: int) -> list[Line]:
        """Wait for more than `count` lines and return the new ones; none once the job is over and all are returned."""
        async with self.news:
            await self.news.wait_for(lambda: self.over or len(self.lines) > count)
        return self.lines[count:]


class Workshop:
    """Runner of training jobs, one after the other."""

    def __init__(self, folder: Path, group: asyncio.TaskGroup) -> None:
        self.files = Files(folder)
        self.jobs: dict[str, Job] = {}
        self._folder = folder
        self._group = group
        self._turn = asyncio.Lock()
        self._numbers = itertools.count(1)

    def begin(self, wish: Wish) -> Job:
        """Create a job and start its task."""
        id_ = f"ftjob-{next(self._numbers)}"
        log = self._folder / f"{id_}.log"
        self.files.keep(log.name, log, _RESULTS)
        job = self.jobs[id_] = Job(id_, wish, time.time(), log)
        self._group.create_task(self._run(job))
        return job

    async def cancel(self, job: Job) -> None:
        """Make a job end between two steps, and wait for it."""
        job.stopping = True
        if job.state is State.QUEUED:
            await job.become(State.CANCELLED, "cancelled before its first step")
        async with job.news:
            await job.news.wait_for(lambda: job.over)

    async def close(self) -> None:
        """Cancel all jobs that are left."""
        for job in self.jobs.values():
            await self.cancel(job)

    async def _run(self, job: Job) -> None:
        await job.become(State.QUEUED, "queued")
        async with self._turn:
            if not job.over:
                try:
                    await self._train(job)
                except Unusable as error:
                    job.error = str(error)
                    path = job.log.with_suffix(".error")
                    path.write_text(f"{error}\n")
                    self.files.keep(path.name, path, _RESULTS)
                    await job.become(State.FAILED, f"failed: {error}")

    async def _train(self, job: Job) -> None:
        wish = job.wish
        dialogs = dialogs_of(self.files.read(wish.data))
        held_back = dialogs_of(self.files.read(wish.validation)) if wish.validation else []
        total = wish.plan.steps(len(dialogs))
        await job.become(State.RUNNING, f"{len(dialogs)} dialogs, {total} steps")
        steps = train(dialogs, held_back, wish.plan, self._folder / job.id)
        while not job.stopping and (step := await asyncio.to_thread(next, steps, None)):
            job.steps, job.tokens = step.number, job.tokens + step.tokens
            text = f"step {step.number} of {total}, epoch {step.epoch}: loss {step.loss:.4f}"
            if step.held_back is not None:
                text += f", validation loss {step.held_back:.4f}"
            if step.adapter is not None:
                job.checkpoints.append(self._checkpoint(job, step, step.adapter))
            await job.say(text)
        if job.steps == total:
            await job.become(State.SUCCESS, f"done after {total} steps")
        else:
            await job.become(State.CANCELLED, f"cancelled after step {job.steps} of {total}")

    def _checkpoint(self, job: Job, step: Step, adapter: Path) -> Checkpoint:
        paths = [adapter / name for name in ("adapter_config.json", "adapter_model.safetensors")]
        files = [
            self.files.keep(f"{job.id}.{adapter.name}.{path.name}", path, _RESULTS)
            for path in paths
        ]
        return Checkpoint(step, time.time(), tuple(file.id for file in files))
