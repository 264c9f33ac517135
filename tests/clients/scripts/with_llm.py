"""Script that reports what the command `llm` gets from a node. Its models stand in `extra-openai-models.yaml`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from asked import BREAKER, KEY, NOBODY, NODE, PROMPT, SHORT, TALKER, tell

COMMAND = Path(sys.executable).with_name("llm")
MODELS = "".join(
    f"- {{model_id: {name}, model_name: {name}, api_base: '{NODE}/v1'}}\n"
    for name in (TALKER, NOBODY, BREAKER)
)


def environment(folder: str) -> dict[str, str]:
    """Return the variables that tell the command where its files are, and its key."""
    return {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": KEY}


def llm(*arguments: str, folder: str) -> subprocess.CompletedProcess[str]:
    """Run the command with files of its own in `folder`."""
    return subprocess.run(
        [COMMAND, *arguments], env=environment(folder), capture_output=True, text=True, check=False
    )


def pieces(*arguments: str, folder: str) -> list[str]:
    """Return what the command writes, piece by piece as it comes."""
    with subprocess.Popen(
        [COMMAND, *arguments], env=environment(folder), stdout=subprocess.PIPE
    ) as process:
        return [piece.decode() for piece in iter(process.stdout.read1, b"")]


with tempfile.TemporaryDirectory() as folder:
    Path(folder, "extra-openai-models.yaml").write_text(MODELS)
    limit = ("-o", "max_tokens", str(SHORT))
    whole = llm("prompt", "-m", TALKER, "--no-stream", *limit, PROMPT, folder=folder)
    stream = pieces("prompt", "-m", TALKER, *limit, PROMPT, folder=folder)
    refused = llm("prompt", "-m", NOBODY, PROMPT, folder=folder)
    broken = llm("prompt", "-m", BREAKER, PROMPT, folder=folder)

tell(
    chat=whole.stdout.strip(),
    stream=stream,
    unknown={"raised": f"exit code {refused.returncode}", "words": refused.stderr},
    broken={"raised": f"exit code {broken.returncode}", "words": broken.stderr},
)
