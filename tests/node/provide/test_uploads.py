"""Uploads in parts: OpenAI's client sends a long file, and an upload that is cancelled or wrong leaves nothing behind."""

import openai
import pytest

from node.provide import uploads


def left(files):
    folder = files.folder.parent / "uploads"
    return list(folder.iterdir()) if folder.exists() else []


async def begun(client, size=6, **changed):
    said = {
        "bytes": size,
        "filename": "a.jsonl",
        "mime_type": "application/jsonl",
        "purpose": "batch",
    }
    return await client.uploads.create(**{**said, **changed})


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
    made = await begun(client)
    one, two = [
        (await client.uploads.parts.create(made.id, data=data)).id for data in (b"abc", b"def")
    ]
    done = await client.uploads.complete(made.id, part_ids=[two, one])
    assert (await client.files.content(done.file.id)).content == b"defabc"


async def test_parts_that_are_not_what_was_announced_are_refused(client, files):
    made = await begun(client)
    one = (await client.uploads.parts.create(made.id, data=b"abc")).id
    for ids in ([], [one], ["part_none"], ["about.json"], ["../files"]):
        with pytest.raises(openai.BadRequestError):
            await client.uploads.complete(made.id, part_ids=ids)
    with pytest.raises(openai.APIStatusError) as large:
        await client.uploads.parts.create(made.id, data=b"x" * 7)
    assert large.value.status_code == 413
    assert not list(files.folder.iterdir())
    assert (await client.uploads.cancel(made.id)).status == "cancelled"
    assert left(files) == []
    with pytest.raises(openai.NotFoundError):
        await client.uploads.cancel(made.id)


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
    made = [await begun(client) for _ in range(uploads.MAX_OPEN + 3)]
    assert len(left(files)) == uploads.MAX_OPEN
    assert (await client.uploads.cancel(made[-1].id)).status == "cancelled"
