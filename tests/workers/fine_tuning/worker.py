"""Real worker for fine-tuning, LoRA by `peft`: `python -m tests.workers.fine_tuning.worker FOLDER`.

It runs in an environment of its own, and has the paths of Llama Stack, and OpenAI's files and fine-tuning jobs.
"""

import asyncio
import json
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import ValidationError

from tests.workers.fine_tuning.data import Unusable
from tests.workers.fine_tuning.jobs import Checkpoint, Job, Kept, Line, State, Wish, Workshop
from tests.workers.fine_tuning.training import ATTENTION, MLP, OUTPUT, Plan
from tests.workers.llama_stack_schema import Config, TrainingOptions

BASE = "tiny-llama"
DEFAULT = Plan()

_STATES = {State.VALIDATION: "validating_files", State.SUCCESS: "succeeded"}
"""States with another name at OpenAI."""


@dataclass(frozen=True, slots=True)
class OverLlamaStack:
    """The paths of Llama Stack 0.0.1."""

    workshop: Workshop

    async def submit(self, request: web.Request) -> web.Response:
        """Answer `/fine_tuning/jobs/submit`."""
        try:
            config = Config.model_validate_json(await request.read())
        except ValidationError as error:
            raise Unusable(str(error)) from error
        if config.overrides or config.logger:
            raise Unusable("nothing can be overridden, and logs stay here")
        fields = config.model_dump(mode="json", exclude_none=True)
        _is_ours(config.model)
        wish = Wish(config.data or "", config.validation_data or "", _plan(config), fields)
        return web.json_response(_told(self.workshop.begin(wish)))

    async def status(self, request: web.Request) -> web.Response:
        """Answer `/fine_tuning/jobs/status`."""
        return web.json_response(_told(_job(self.workshop, request.query.get("job_id"))))

    async def cancel(self, request: web.Request) -> web.Response:
        """Answer `/fine_tuning/jobs/cancel`."""
        job = _job(self.workshop, (await request.json()).get("job_id"))
        await self.workshop.cancel(job)
        return web.json_response(_told(job))

    async def tail(self, request: web.Request) -> web.StreamResponse:
        """Answer `/fine_tuning/jobs/tail`: all lines from the first on, until the job ends."""
        job, sent = _job(self.workshop, request.query.get("job_id")), 0
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        while lines := await job.lines_after(sent):
            for line in lines:
                row = {"logs": [{"message": line.text, "timestamp": _time(line.when)}]}
                await response.write(json.dumps(row).encode() + b"\n")
            sent += len(lines)
        await response.write_eof()
        return response


@dataclass(frozen=True, slots=True)
class OverOpenAI:
    """OpenAI's files and jobs."""

    workshop: Workshop

    async def models(self, request: web.Request) -> web.Response:
        """Answer `/v1/models`: the models do not chat."""
        return web.json_response({"object": "list", "data": []})

    async def upload(self, request: web.Request) -> web.Response:
        """Answer `POST /v1/files`."""
        form = await request.post()
        file = form["file"]
        if not isinstance(file, web.FileField):
            raise Unusable("file must be a file")
        stored = self.workshop.files.upload(file.filename, str(form["purpose"]), file.file.read())
        return web.json_response(_file(stored))

    async def about(self, request: web.Request) -> web.StreamResponse:
        """Answer `/v1/files/ID` and `…/content`."""
        stored = self.workshop.files.find(request.match_info["id"])
        if stored is None:
            raise web.HTTPNotFound(text="no such file")
        whole = request.path.endswith("/content")
        return web.FileResponse(stored.path) if whole else web.json_response(_file(stored))

    async def create(self, request: web.Request) -> web.Response:
        """Answer `POST /v1/fine_tuning/jobs`."""
        fields = await request.json()
        _is_ours(fields.get("model"))
        method = fields.get("method") or {"type": "supervised"}
        if method["type"] != "supervised":
            raise Unusable("only supervised fine-tuning is done")
        hyperparameters = method.get("supervised", {}).get("hyperparameters") or fields.get(
            "hyperparameters"
        )
        settings = {
            name: value for name, value in (hyperparameters or {}).items() if value != "auto"
        }
        plan = Plan(
            epochs=int(settings.get("n_epochs", 1)),
            batch=int(settings.get("batch_size", DEFAULT.batch)),
            rate=DEFAULT.rate * float(settings.get("learning_rate_multiplier", 1)),
            seed=int(fields.get("seed") or 0),
        )
        data, validation = fields.get("training_file") or "", fields.get("validation_file") or ""
        return web.json_response(_openai(self.workshop.begin(Wish(data, validation, plan, fields))))

    async def jobs(self, request: web.Request) -> web.Response:
        """Answer `GET /v1/fine_tuning/jobs`, the newest first."""
        return _page(request, [_openai(job) for job in reversed(self.workshop.jobs.values())])

    async def job(self, request: web.Request) -> web.Response:
        """Answer `/v1/fine_tuning/jobs/ID`."""
        return web.json_response(_openai(_job(self.workshop, request.match_info["id"])))

    async def cancel(self, request: web.Request) -> web.Response:
        """Answer `/v1/fine_tuning/jobs/ID/cancel`."""
        job = _job(self.workshop, request.match_info["id"])
        await self.workshop.cancel(job)
        return web.json_response(_openai(job))

    async def events(self, request: web.Request) -> web.Response:
        """Answer `/v1/fine_tuning/jobs/ID/events`, the newest first."""
        job = _job(self.workshop, request.match_info["id"])
        rows = [_event(job, n, line) for n, line in enumerate(job.lines, 1)]
        return _page(request, rows[::-1])

    async def checkpoints(self, request: web.Request) -> web.Response:
        """Answer `/v1/fine_tuning/jobs/ID/checkpoints`, the newest first."""
        job = _job(self.workshop, request.match_info["id"])
        return _page(
            request, [_checkpoint(job, checkpoint) for checkpoint in reversed(job.checkpoints)]
        )


def _job(workshop: Workshop, id_: str | None) -> Job:
    if id_ not in workshop.jobs:
        raise web.HTTPNotFound(text="no such job")
    return workshop.jobs[id_]


def _is_ours(model: object) -> None:
    if model != BASE:
        raise Unusable(f"only {BASE} is fine-tuned here")


def _plan(config: Config) -> Plan:
    """Return the plan of Llama Stack's options; raise `Unusable`."""
    options = config.fine_tuning_options
    if options is None:
        return DEFAULT
    lora = options.custom_training_options or TrainingOptions()
    if lora.finetuning_type not in (None, "lora"):
        raise Unusable("only LoRA is trained")
    attention = tuple(lora.lora_attn_modules or DEFAULT.targets)
    if unknown := {*attention}.difference(ATTENTION):
        raise Unusable(f"lora_attn_modules has {min(unknown)}, which is none of {ATTENTION}")
    values = {
        "epochs": options.n_epochs,
        "batch": options.batch_size,
        "rate": options.lr,
        "accumulated": options.gradient_accumulation_steps,
        "seed": options.seed,
        "shuffle": options.shuffle,
        "rank": lora.lora_rank,
        "alpha": lora.lora_alpha,
    }
    targets = attention + MLP * lora.apply_lora_to_mlp + OUTPUT * lora.apply_lora_to_output
    return Plan(
        **{name: value for name, value in values.items() if value is not None}, targets=targets
    )


def _told(job: Job) -> dict[str, object]:
    """Return a `FineTuningJob`."""
    files = [_place(id_) for checkpoint in job.checkpoints for id_ in checkpoint.files]
    metadata = job.wish.asked.get("metadata")
    more = {
        "finished_at": _time(job.finished) if job.finished else None,
        "error_path": _place(f"{job.id}.error") if job.error else None,
        "checkpoints": files or None,
    }
    return {
        "job_id": job.id,
        "created": _time(job.created),
        "status": job.state,
        "logs": _place(job.log.name),
        "input_config": job.wish.asked,
        "metadata": {**(metadata if isinstance(metadata, dict) else {}), "steps": job.steps},
        **{name: value for name, value in more.items() if value is not None},
    }


def _place(id_: str) -> str:
    return f"/v1/files/{id_}/content"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _file(stored: Kept) -> dict[str, object]:
    about = {"id": stored.id, "object": "file", "bytes": stored.path.stat().st_size}
    more = {"filename": stored.name, "purpose": stored.purpose, "status": "processed"}
    return {**about, **more, "created_at": int(stored.created)}


def _openai(job: Job) -> dict[str, object]:
    plan, fields = job.wish.plan, job.wish.asked
    last = job.checkpoints[-1] if job.checkpoints and job.state is State.SUCCESS else None
    error = {"code": "unusable", "message": job.error, "param": None}
    return {
        "id": job.id,
        "object": "fine_tuning.job",
        "created_at": int(job.created),
        "finished_at": int(job.finished) if job.finished else None,
        "status": _STATES.get(job.state, str(job.state)),
        "error": error if job.error else None,
        "model": BASE,
        "fine_tuned_model": f"{BASE}:{job.id}" if last else None,
        "hyperparameters": {"n_epochs": plan.epochs, "batch_size": plan.batch},
        "organization_id": "nobody",
        "result_files": [*last.files] if last else [],
        "seed": plan.seed,
        "trained_tokens": job.tokens if last else None,
        "training_file": job.wish.data,
        "validation_file": job.wish.validation or None,
        "metadata": fields.get("metadata"),
    }


def _event(job: Job, number: int, line: Line) -> dict[str, object]:
    of_a_step = re.search(r"^step (\d+).* loss (\S+)$", line.text)
    data = {"step": int(of_a_step[1]), "loss": float(of_a_step[2])} if of_a_step else {}
    return {
        "id": f"{job.id}.event-{number}",
        "object": "fine_tuning.job.event",
        "created_at": int(line.when),
        "level": "info",
        "message": line.text,
        "type": "metrics" if data else "message",
        "data": data,
    }


def _checkpoint(job: Job, checkpoint: Checkpoint) -> dict[str, object]:
    step = checkpoint.step
    metrics: dict[str, object] = {"step": step.number, "train_loss": step.loss}
    if step.held_back is not None:
        metrics["full_valid_loss"] = step.held_back
    return {
        "id": f"{job.id}.step-{step.number}",
        "object": "fine_tuning.job.checkpoint",
        "created_at": int(checkpoint.when),
        "fine_tuned_model_checkpoint": f"{BASE}:{job.id}:step-{step.number}",
        "fine_tuning_job_id": job.id,
        "metrics": metrics,
        "step_number": step.number,
    }


def _page(request: web.Request, rows: list[dict[str, object]]) -> web.Response:
    """Return a page of a list, beginning after the row `after`."""
    ids = [row["id"] for row in rows]
    start = ids.index(request.query["after"]) + 1 if request.query.get("after") in ids else 0
    end = start + int(request.query.get("limit", 20))
    page = {"object": "list", "data": rows[start:end], "has_more": end < len(rows)}
    return web.json_response(page)


@web.middleware
async def _refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Unusable as error:
        payload: Mapping[str, object] = {"message": str(error), "type": "invalid_request_error"}
        return web.json_response({"error": {**payload, "param": None, "code": None}}, status=400)


def _application(workshop: Workshop) -> web.Application:
    stack, ai = OverLlamaStack(workshop), OverOpenAI(workshop)
    jobs = "/v1/fine_tuning/jobs"
    app = web.Application(client_max_size=16 * 1024 * 1024, middlewares=[_refusing])
    app.add_routes([
        web.post("/fine_tuning/jobs/submit", stack.submit),
        web.get("/fine_tuning/jobs/status", stack.status),
        web.post("/fine_tuning/jobs/cancel", stack.cancel),
        web.get("/fine_tuning/jobs/tail", stack.tail),
        web.get("/v1/models", ai.models),
        web.post("/v1/files", ai.upload),
        web.get("/v1/files/{id}", ai.about),
        web.get("/v1/files/{id}/content", ai.about),
        web.post(jobs, ai.create),
        web.get(jobs, ai.jobs),
        web.get(f"{jobs}/{{id}}", ai.job),
        web.post(f"{jobs}/{{id}}/cancel", ai.cancel),
        web.get(f"{jobs}/{{id}}/events", ai.events),
        web.get(f"{jobs}/{{id}}/checkpoints", ai.checkpoints),
    ])  # fmt: skip
    return app


async def _serve(folder: Path) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with asyncio.TaskGroup() as group:
        workshop = Workshop(folder, group)
        runner = web.AppRunner(_application(workshop), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        sys.stdout.write(f"ready url=http://127.0.0.1:{runner.addresses[0][1]}\n")
        sys.stdout.flush()
        await ended.wait()
        await workshop.close()
        await runner.cleanup()


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(_serve(Path(sys.argv[1])))
