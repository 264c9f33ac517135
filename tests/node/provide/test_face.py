"""The face of the provider: OpenAI's client understands it, strangers learn nothing, and bad input leaves nothing behind."""

import aiohttp
import openai
import pytest

from node.provide import face, form
from tests.node.provide.conftest import KEY


async def test_who_does_not_show_the_key_learns_nothing(url):
    async with aiohttp.ClientSession() as session:
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": f"Basic {KEY}"}):
            for path in ("/v1/models", "/v1/files", "/v1/batches/x", "/elsewhere"):
                async with session.get(url + path, headers=headers) as response:
                    assert response.status == 401


async def test_a_file_is_kept_listed_read_and_deleted(client, engine):
    made = [
        await client.files.create(file=(f"{n}.jsonl", b"x" * n), purpose="batch") for n in (1, 2, 3)
    ]
    assert [file.bytes for file in made] == [1, 2, 3]
    listed = [file.id async for file in await client.files.list(limit=2)]
    assert listed == [file.id for file in reversed(made)]
    assert (await client.files.content(made[2].id)).content == b"xxx"
    assert (await client.files.retrieve(made[1].id)).filename == "2.jsonl"
    assert (await client.files.delete(made[0].id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.content(made[0].id)
    assert not (engine.folder / made[0].id).exists()


async def test_a_file_that_is_refused_leaves_nothing_behind(client, engine, monkeypatch):
    monkeypatch.setattr(face, "MAX_FILE_BYTES", 10)
    with pytest.raises(openai.APIStatusError) as large:
        await client.files.create(file=("a", b"x" * 11), purpose="batch")
    assert large.value.status_code == 413
    with pytest.raises(openai.BadRequestError):
        await client.files.create(file=("a", b"x"), purpose="assistants")
    assert not [path for path in engine.folder.iterdir() if path.name.startswith("file-")]


@pytest.mark.parametrize(
    "body", [b"", b"--b\r\n", b"--b\r\nContent-Disposition: form-data\r\n\r\nx"]
)
async def test_a_broken_form_is_refused(url, body):
    headers = {"authorization": f"Bearer {KEY}", "content-type": "multipart/form-data; boundary=b"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/v1/files", data=body) as response,
    ):
        assert response.status == 400


async def test_a_batch_is_taken_in_listed_and_cancelled(client):
    file = await client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    asked = {"input_file_id": file.id, "endpoint": "/v1/embeddings"}
    made = await client.batches.create(**asked, completion_window="24h", metadata={"a": "b"})
    assert (made.status, made.expires_at, made.metadata) == ("validating", 1e9 + 86_400, {"a": "b"})
    assert [batch.id for batch in (await client.batches.list()).data] == [made.id]
    assert (await client.batches.cancel(made.id)).status == "cancelling"
    with pytest.raises(openai.NotFoundError):
        await client.batches.retrieve("batch_none")


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"input_file_id": "../b.db"}, "input_file_id"),
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
    ],
)
async def test_what_cannot_be_asked_is_named(client, changed, param):
    file = await client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    asked = {"input_file_id": file.id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.batches.create(**{**asked, **changed})
    assert refused.value.param == param


async def test_a_page_that_is_none_is_refused(client):
    for wrong in ({"limit": "0"}, {"limit": "x"}, {"after": "file-none"}):
        with pytest.raises(openai.BadRequestError):
            await client.files.list(extra_query=wrong)


async def test_a_disk_that_is_full_is_told(client, engine, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(form, "sync", full)
    with pytest.raises(openai.InternalServerError) as told:
        await client.files.create(file=("a", b"x"), purpose="batch")
    assert told.value.status_code == 507
    assert not [path for path in engine.folder.iterdir() if path.name.startswith("file-")]
