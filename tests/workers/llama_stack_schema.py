"""Schemas of Llama Stack 0.0.1 as in its specification. They refuse unknown fields; undefined types are open."""

from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, TypeAdapter
from pydantic.alias_generators import to_camel

Free = dict[str, Any]


class Said(BaseModel):
    """A schema that allows its own fields only, and requires none."""

    model_config = ConfigDict(extra="forbid")


class Camel(Said):
    """The same, with names in camel case."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class Message(Said):
    """Undefined in the specification; it can mean `ModelInputMessage` or `ModelOutputMessage`."""

    model_config = ConfigDict(extra="allow")
    text: str | None = None


class Path(Said):
    value: str | None = None
    type: Literal["raw_bytes", "filepath", "uri"] | None = None


class Options(Said):
    logprobs: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None


class Function(Said):
    name: str | None = None
    params: Free | None = None


class Job(Said):
    job_id: str
    created: AwareDatetime | None = None
    metadata: Free | None = None


class BatchJob(Job):
    status: Literal["validating", "running", "completed", "failed"] | None = None
    input_file_path: Path | None = None
    success_file_path: Path | None = None
    error_file_path: Path | None = None


class SyntheticDataGenJob(Job):
    status: Literal["validating", "running", "completed", "failed"] | None = None
    input_file_path: str | None = None
    success_file_path: str | None = None
    error_file_path: str | None = None


class TrainingDataItem(Said):
    dialog: list[Message]
    keep_loss: list[bool] | None = None


class TrainingOptions(Said):
    """Options of LoRA and of full fine-tuning; `finetuning_type` selects."""

    finetuning_type: str | None = None
    lora_attn_modules: list[str] | None = None
    apply_lora_to_mlp: bool = False
    apply_lora_to_output: bool = False
    lora_rank: int | None = None
    lora_alpha: int | None = None
    enable_activation_checkpointing: bool | None = None
    memory_efficient_fsdp_wrap: bool | None = None
    fsdp_cpu_offload: bool | None = None


class FineTuningOptions(Said):
    n_epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    gradient_accumulation_steps: int | None = None
    seed: int | None = None
    shuffle: bool | None = None
    custom_training_options: TrainingOptions | None = None
    extras: Free | None = None


class Config(Said):
    model: str | None = None
    data: str | None = None
    validation_data: str | None = None
    fine_tuning_options: FineTuningOptions | None = None
    logger: Free | None = None
    overrides: str | None = None
    metadata: Free | None = None


class FineTuningJob(Job):
    finished_at: AwareDatetime | None = None
    status: Literal["validation", "queued", "running", "failed", "success", "cancelled"] | None = (
        None
    )
    error_path: str | None = None
    checkpoints: list[str] | None = None
    logs: str | None = None
    input_config: Config | None = None


class Log(Said):
    message: str
    timestamp: AwareDatetime


class Logs(Said):
    logs: list[Log]


class Score(Said):
    id: str
    logprob: float | None = None
    score: float | None = None


class Step(Camel):
    id: str
    role: Literal["assistant", "user"]
    step_type: Literal["user_response", "assistant_response", "tool_request", "tool_response"]
    messages: list[Message]
    timestamp: AwareDatetime
    metadata: Free | None = None


class Turn(Camel):
    id: str
    steps: list[Step]
    start_time: AwareDatetime
    end_time: AwareDatetime
    status: Literal["completed", "failed"]
    metadata: Free | None = None


class Agent(Said):
    name: str
    description: str | None = None
    tools: list[Free] | None = None
    model: Literal["llama31_405", "llama3_70", "llama3_8"]


class JobId(Said):
    job_id: str


class SubmitBatch(Said):
    model: str
    prompt_file_path: Path
    options: Options | None = None
    num_generations: int | None = None


class SubmitScoring(Said):
    reward_model: str
    prompt_with_response_path: Path
    scoring_function: Function
    metadata: Free | None = None


class SubmitSynthetic(Said):
    model: str
    prompt_file_path: str
    options: Options | None = None
    num_generations: int | None = None
    reward_model: str | None = None
    scoring_function: Function | None = None
    filtering_function: Function | None = None
    metadata: Free | None = None


class AskScore(Said):
    prompt_with_response: list[Message]
    reward: str
    scoring_function: Function
    options: Options | None = None


class Execute(Camel):
    agent: Agent
    turn_history: list[Step]
    user_step: Step


class VectorStore(Said):
    id: str
    name: str | None = None
    description: str | None = None


class VectorStoreJob(Said):
    id: str
    content: str | None = None


OPEN: TypeAdapter[Any] = TypeAdapter(Free)

ANSWERS: dict[str, TypeAdapter[Any]] = {
    **{f"/batch_inference/jobs/{what}": TypeAdapter(BatchJob) for what in ("submit", "status", "cancel")},
    **{f"/batch_reward_scoring/jobs/{what}": TypeAdapter(BatchJob) for what in ("submit", "status", "cancel")},
    **{f"/synthetic_data_gen/jobs/{what}": TypeAdapter(SyntheticDataGenJob) for what in ("submit", "status", "cancel")},
    **{f"/fine_tuning/jobs/{what}": TypeAdapter(FineTuningJob) for what in ("submit", "status", "cancel")},
    "/fine_tuning/jobs/tail": TypeAdapter(Logs),
    "/reward_scoring": TypeAdapter(Score),
    "POST /agents/execute": TypeAdapter(Turn),
    # The specification leaves `MemoryNugget` undefined.
    "GET /agents/execute": TypeAdapter(list[Free]),
    "/quantize": OPEN,
    "/vector_store": TypeAdapter(VectorStore),
    "/vector_store/create": TypeAdapter(VectorStore),
    "/vector_store/update": TypeAdapter(VectorStore),
    "/vector_store/drop": TypeAdapter(VectorStore),
    **{f"/vector_store/insert/jobs/{what}": TypeAdapter(VectorStoreJob) for what in ("submit", "status", "cancel")},
    **{f"/vector_store/delete/jobs/{what}": TypeAdapter(VectorStoreJob) for what in ("submit", "status", "cancel")},
}  # fmt: skip
"""Schemas of answers, by path, or by method and path."""

BODIES: dict[str, TypeAdapter[Any]] = {
    "/batch_inference/jobs/submit": TypeAdapter(SubmitBatch),
    "/fine_tuning/jobs/submit": TypeAdapter(Config),
    "/reward_scoring": TypeAdapter(AskScore),
    "/batch_reward_scoring/jobs/submit": TypeAdapter(SubmitScoring),
    "/synthetic_data_gen/jobs/submit": TypeAdapter(SubmitSynthetic),
    "/agents/execute": TypeAdapter(Execute),
    **{
        f"/{job}/jobs/cancel": TypeAdapter(JobId)
        for job in ("batch_inference", "fine_tuning", "batch_reward_scoring", "synthetic_data_gen")
    },
}
"""Schemas of request bodies, by path."""
