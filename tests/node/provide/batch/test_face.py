"""Batches as OpenAI's client asks for them."""

import openai
import pytest


async def test_a_batch_is_created_listed_and_cancelled(client):
    file = await client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    fields = {"input_file_id": file.id, "endpoint": "/v1/embeddings"}
    made = await client.batches.create(**fields, completion_window="24h", metadata={"a": "b"})
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
async def test_the_refusal_of_an_invalid_batch_names_the_parameter(client, changed, param):
    file = await client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    fields = {"input_file_id": file.id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.batches.create(**{**fields, **changed})
    assert refused.value.param == param
