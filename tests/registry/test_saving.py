"""Writing behind: nothing is lost while the store fails, and of two changes to one value the later counts."""

import pytest

from registry.errors import StoreUnavailable
from registry.saving import Saving
from registry.store import Delete, Put, Space
from tests.registry.test_service import ShakyStore


async def test_of_two_changes_to_one_value_the_later_is_written() -> None:
    store = ShakyStore()
    saving = Saving(store)
    saving.note(Put(Space.RECORDS, "a", b"1"))
    saving.note(Put(Space.RECORDS, "b", b"1"))
    saving.note(Delete(Space.RECORDS, "a"))
    await saving.save()
    assert dict(await store.read(Space.RECORDS)) == {"b": b"1"}


async def test_values_of_unlike_spaces_do_not_replace_each_other() -> None:
    store = ShakyStore()
    saving = Saving(store)
    saving.note(Put(Space.RECORDS, "a", b"1"))
    saving.note(Put(Space.SELF, "a", b"2"))
    await saving.save()
    assert (await store.read(Space.RECORDS))["a"] == b"1"
    assert (await store.read(Space.SELF))["a"] == b"2"


async def test_what_could_not_be_written_is_written_when_the_store_is_back() -> None:
    store = ShakyStore()
    saving = Saving(store)
    store.works = False
    saving.note(Put(Space.RECORDS, "a", b"1"))
    with pytest.raises(StoreUnavailable):
        await saving.save()
    assert saving.failure
    store.works = True
    await saving.save()
    assert not saving.failure
    assert (await store.read(Space.RECORDS))["a"] == b"1"


async def test_a_store_that_cannot_be_read_holds_nothing_and_says_so() -> None:
    store = ShakyStore()
    store.works = False
    saving = Saving(store)
    assert not await saving.read(Space.RECORDS)
    assert saving.failure
