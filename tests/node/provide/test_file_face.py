"""HTTP face of files, and of uploads in parts."""

import aiohttp
import openai
import pytest

from node.provide import face, file_face
from tests.node.provide.conftest import KEY


def left(files):
    folder = files.folder.parent / "uploads"
    return list(folder.iterdir()) if folder.exists() else []


async def begun(client, size=6, **changed):
    fields = {
        "bytes": size,
        "filename": "a.jsonl",
        "mime_type": "application/jsonl",
        "purpose": "batch",
    }
    return await client.uploads.create(**{**fields, **changed})


async def test_a_file_uploaded_in_parts_is_one_file(client, files):
    done = await client.uploads.upload_file_chunked(
        file=b"0123456789", filename="a.jsonl", bytes=10, mime_type="application/jsonl",
        purpose="batch", part_size=4,
    )  # fmt: skip
    assert done.status == "completed"
    assert done.file is not None
    assert (await client.files.content(done.file.id)).content == b"0123456789"
    assert left(files) == []


async def test_parts_are_joined_in_the_order_that_is_asked_for(client):
    upload = await begun(client)
    one, two = [
        (await client.uploads.parts.create(upload.id, data=data)).id for data in (b"abc", b"def")
    ]
    done = await client.uploads.complete(upload.id, part_ids=[two, one])
    assert (await client.files.content(done.file.id)).content == b"defabc"


async def test_parts_that_are_not_what_was_announced_are_refused(client, files):
    upload = await begun(client)
    part = (await client.uploads.parts.create(upload.id, data=b"abc")).id
    for ids in ([], [part], ["part_none"], ["about.json"], ["../files"]):
        with pytest.raises(openai.BadRequestError):
            await client.uploads.complete(upload.id, part_ids=ids)
    with pytest.raises(openai.APIStatusError) as large:
        await client.uploads.parts.create(upload.id, data=b"x" * 7)
    assert large.value.status_code == 413
    assert not list(files.folder.iterdir())
    assert (await client.uploads.cancel(upload.id)).status == "cancelled"
    assert left(files) == []
    with pytest.raises(openai.NotFoundError):
        await client.uploads.cancel(upload.id)


@pytest.mark.parametrize("id_", ["upload_none", "upload_..", "files", "%2e%2e"])
async def test_an_unknown_upload_is_not_found(client, id_):
    with pytest.raises(openai.NotFoundError):
        await client.uploads.cancel(id_)


async def test_an_upload_with_a_wrong_size_or_purpose_is_refused(client):
    for wrong in ({"size": 0}, {"size": 10**12}, {"purpose": "assistants"}):
        with pytest.raises(openai.BadRequestError):
            await begun(client, **wrong)


async def test_files_beyond_the_bound_are_refused_with_the_advice_to_delete_some(client):
    await client.files.create(file=("a", b"x" * 600), purpose="batch")
    for size in (401, 900):
        with pytest.raises(openai.InternalServerError, match="delete some") as full:
            await begun(client, size)
        assert full.value.status_code == 507
    with pytest.raises(openai.InternalServerError, match="delete some"):
        await client.files.create(file=("a", b"x" * 600), purpose="batch")


async def test_the_oldest_upload_makes_room(client, files):
    uploads = [await begun(client) for _ in range(file_face.MAX_OPEN + 3)]
    assert len(left(files)) == file_face.MAX_OPEN
    assert (await client.uploads.cancel(uploads[-1].id)).status == "cancelled"


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
    names = [files.table.find(path.name)["filename"] for path in files.folder.iterdir()]
    assert names == ([] if status == 400 else [name.replace(b"\xfc", b"?").decode() + ".jsonl"])


async def test_a_full_disk_is_reported_as_status_507(client, files, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(face, "sync", full)
    with pytest.raises(openai.InternalServerError) as failed:
        await client.files.create(file=("a", b"x"), purpose="batch")
    assert failed.value.status_code == 507
    assert not [path for path in files.folder.iterdir() if path.name.startswith("file-")]
