"""Laws of refusals: what the status and the headers of a worker's refusal mean."""

import pytest

from router.http.refusals import retry_after


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("99999999", 3600.0),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
        ("-1", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Sat, 99 Nov 2026 12:00:30 GMT", None),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(said: str, seconds: float | None) -> None:
    assert retry_after(said, 1795262400.0) == seconds
