"""Prices: the first pattern that fits a model counts; a model without a price costs nothing."""

import pytest

from node.auth.usage_row import UsageRow, parse_price, sums, with_costs

PRICES = [parse_price("llama-70b=2/6"), parse_price("lab/*=0.5/0.5"), parse_price("llama*=0.2/0.6")]


def row(model, read=1_000_000, written=500_000):
    return UsageRow("2026-11-25", "ann", model, "n", 1, 0, read, written)


@pytest.mark.parametrize(
    ("model", "cost"),
    [("llama-70b", 5.0), ("llama-8b", 0.5), ("p/llama-8b", 0.5), ("lab/qwen", 0.75), ("qwen", 0.0)],
)
def test_a_row_costs_what_its_model_costs(model, cost):
    assert [priced.cost for priced in with_costs([row(model)], PRICES)] == [cost]


def test_sums_of_several_models_add_what_each_cost():
    [summed] = sums(with_costs([row("llama-70b"), row("llama-8b"), row("qwen")], PRICES), ("key",))
    assert (summed.cost, summed.requests) == (5.5, 3)


def test_without_prices_rows_are_as_they_were():
    assert with_costs([row("llama")], []) == [row("llama")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "llama",
        "llama=1",
        "llama=1/",
        "=1/2",
        "llama=-1/2",
        "llama=1/x",
        "llama=nan/1",
        "llama=1e9/1",
    ],
)
def test_text_that_is_no_price_is_refused(text):
    with pytest.raises(ValueError, match="PATTERN=INPUT/OUTPUT"):
        parse_price(text)
