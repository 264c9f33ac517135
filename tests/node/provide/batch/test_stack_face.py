"""Jobs of Llama Stack at the provider itself: what it refuses. That they run is shown by test_services_provided.py."""

import aiohttp
import pytest

from node.provide.asker import Asker
from node.provide.batch import stack_face
from node.provide.batch.stack_face import StackFace
from node.provide.face import application
from tests.node.provide.conftest import KEY
from tests.workers.serving import served

LENGTH = {"name": "length", "params": {"max": 7}}
RAW = {"value": "[]", "type": "raw_bytes"}


@pytest.fixture
async def http(engine, tmp_path):
    (tmp_path / "inbox").mkdir()
    face = StackFace(engine, Asker(""), tmp_path / "inbox", lambda: 1e9)
    headers = {"authorization": f"Bearer {KEY}"}
    async with (
        served(application(face.routes(), KEY)) as url,
        aiohttp.ClientSession(url, headers=headers) as session,
    ):
        yield session


@pytest.mark.parametrize(
    ("path", "asked", "param"),
    [
        ("batch_inference", {"prompt_file_path": RAW}, "model"),
        ("batch_inference", {"model": "m"}, "prompt_file_path"),
        (
            "batch_inference",
            {"model": "m", "prompt_file_path": RAW, "options": {"top_k": 1}},
            "options.top_k",
        ),
        ("batch_reward_scoring", {"prompt_with_response_path": RAW}, "scoring_function"),
        ("batch_reward_scoring", {"scoring_function": LENGTH}, "prompt_with_response_path"),
        (
            "batch_reward_scoring",
            {"scoring_function": LENGTH, "prompt_with_response_path": RAW, "metadata": 1},
            "metadata",
        ),
        ("synthetic_data_gen", {"model": "m"}, "prompt_file_path"),
        (
            "synthetic_data_gen",
            {"model": "m", "filtering_function": {"name": "best_of"}},
            "scoring_function",
        ),
    ],
)
async def test_the_refusal_of_an_invalid_job_names_the_parameter(http, engine, path, asked, param):
    async with http.post(f"/{path}/jobs/submit", json=asked) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, param)
    assert engine.store.batches() == []
    assert not list(engine.files.folder.iterdir())


@pytest.mark.parametrize("path", ["batch_inference", "synthetic_data_gen"])
async def test_a_line_that_is_nested_deeply_stays_for_its_error(http, engine, tmp_path, path):
    deep = '[{"text":"a","attachments":' + "[" * 300 + "]" * 300 + "}]\n"
    (tmp_path / "inbox" / "a").write_text(deep + '[{"text":"b"}]\n')
    prompt_file = "a" if path == "synthetic_data_gen" else {"value": "a", "type": "filepath"}
    fields = {"model": "m", "prompt_file_path": prompt_file}
    async with http.post(f"/{path}/jobs/submit", json=fields) as response:
        assert response.status == 200
    (file,) = engine.files.folder.iterdir()
    assert [line[:2] for line in file.read_bytes().splitlines()] == [b"[{", b'{"']


async def test_a_file_that_is_too_large_is_refused(http, engine, tmp_path, monkeypatch):
    monkeypatch.setattr(stack_face, "MAX_FILE_BYTES", 3)
    (tmp_path / "inbox" / "a").write_bytes(b"[[]]")
    fields = {"model": "m", "prompt_file_path": {"value": "a", "type": "filepath"}}
    async with http.post("/batch_inference/jobs/submit", json=fields) as response:
        assert response.status == 413
    assert not list(engine.files.folder.iterdir())
