from registry.bounded import put_newest


def test_the_entry_that_was_put_longest_ago_is_evicted() -> None:
    entries: dict[str, int] = {}
    for number, key in enumerate("abac"):
        put_newest(entries, key, number, limit=2)
    assert list(entries.items()) == [("a", 2), ("c", 3)]
