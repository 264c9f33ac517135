"""How does an answer look that a worker gave in another protocol? One module per kind of answer; what stands here is of text."""

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
