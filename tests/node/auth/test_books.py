"""Receipts that wait to be written down."""

import json

import pytest

from node.auth.books import MAX_WAITING, ReceiptBook
from node.auth.receipts import Side
from router.openai.usage import Usage


@pytest.mark.parametrize(
    ("usage", "prompt", "completion"),
    [(Usage(3, 4), 3, 4), (Usage(0, 4, estimated=True), None, None), (None, None, None)],
)
def test_an_answer_is_written_down_with_the_tokens_that_were_told(usage, prompt, completion):
    book = ReceiptBook(lambda: 12.3456)
    book.add(Side.SERVED, "peer", "r" * 99 + '"r', "\u00e9" * 200, usage, 0.0257)
    [receipt] = book.take()
    assert (receipt.peer, receipt.at) == ("peer", 12_345)
    expected = {
        "at": 12_345,
        "request": "r" * 99 + '"',
        "side": "served",
        "model": "\u00e9" * 100,
        "prompt": prompt,
        "completion": completion,
        "milliseconds": 25,
    }
    assert receipt.text == json.dumps(expected, sort_keys=True, separators=(",", ":"))
    assert book.take() == ()


def test_waiting_receipts_are_bounded_and_lost_ones_are_counted():
    book = ReceiptBook(lambda: 1.0)
    for _ in range(MAX_WAITING + 3):
        book.add(Side.ASKED, "peer", "r", "m", None, 1.0)
    assert book.lost == 3
    assert len(book.take()) == MAX_WAITING
