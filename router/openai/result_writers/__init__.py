"""Writers of answers in OpenAI's form: one module per kind of answer; what stands here is of text."""

from router.openai.text_writer import (
    DONE,
    SUCCESS,
    Delta,
    End,
    Event,
    Form,
    Reason,
    ToolCall,
    refused,
)

__all__ = [
    "DONE",
    "SUCCESS",
    "Delta",
    "End",
    "Event",
    "Form",
    "Reason",
    "ToolCall",
    "refused",
]
