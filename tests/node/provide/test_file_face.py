"""Files of a provider: OpenAI's client understands them, and bad input leaves nothing behind."""

import aiohttp
import openai
import pytest

from node.provide import face, file_face
from tests.node.provide.conftest import KEY


async def test_a_file_is_kept_listed_read_and_deleted(client, files):
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
    assert not (files.folder / made[0].id).exists()


async def test_a_file_that_is_refused_leaves_nothing_behind(client, files, monkeypatch):
    monkeypatch.setattr(file_face, "MAX_FILE_BYTES", 10)
    with pytest.raises(openai.APIStatusError) as large:
        await client.files.create(file=("a", b"x" * 11), purpose="batch")
    assert large.value.status_code == 413
    with pytest.raises(openai.BadRequestError):
        await client.files.create(file=("a", b"x"), purpose="assistants")
    assert not [path for path in files.folder.iterdir() if path.name.startswith("file-")]


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


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n%b\r\nbatch\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="%b.jsonl"\r\n\r\nx\r\n--b--\r\n'
)


@pytest.mark.parametrize(
    ("more", "name", "status"),
    [
        (b"", b"\xfc", 200),
        (b"", b"a\0b", 400),
        (b"Content-Transfer-Encoding: banana\r\n", b"a", 200),
    ],
)
async def test_a_file_with_an_odd_name_is_kept_under_another_or_refused(
    url, files, more, name, status
):
    headers = {"authorization": f"Bearer {KEY}", "content-type": "multipart/form-data; boundary=b"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/v1/files", data=FORM % (more, name)) as response,
    ):
        assert response.status == status
    kept = [files.table.find(path.name)["filename"] for path in files.folder.iterdir()]
    assert kept == ([] if status == 400 else [name.replace(b"\xfc", b"?").decode() + ".jsonl"])


async def test_a_full_disk_is_reported_as_status_507(client, files, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(face, "sync", full)
    with pytest.raises(openai.InternalServerError) as told:
        await client.files.create(file=("a", b"x"), purpose="batch")
    assert told.value.status_code == 507
    assert not [path for path in files.folder.iterdir() if path.name.startswith("file-")]
