"""Laws of the prefix index: which replicas have read how much of a conversation, and when."""

from registry.records import PeerId, Service
from router.openai.prefixes import Prefix, Prefixes
from router.state.prefix_index import MAX_PREFIXES, MAX_READERS, PrefixIndex, Read


def key(name: str) -> tuple[PeerId, Service]:
    return PeerId(name), Service("p", "m")


def talk(*texts: str, shared: int = 0) -> Prefixes:
    chain, whole = [], ""
    for text in texts:
        whole += text
        chain.append(Prefix(whole.encode(), 10 * (len(chain) + 1)))
    return Prefixes(tuple(chain), shared, shared)


def test_the_longest_common_prefix_and_its_age_are_found() -> None:
    index = PrefixIndex()
    index.record_read(key("a"), talk("hi"), 1.0)
    index.record_read(key("b"), talk("hi", "hello", "how?"), 3.0)
    read, shared = index.find_readers(talk("hi", "hello", "how?", "so", "and?"), 4.0)
    assert read == {key("a"): Read(10, 3.0), key("b"): Read(30, 1.0)}
    assert shared == 0
    assert index.find_readers(talk("ho", "hello"), 4.0) == ({}, 0)


def test_a_shared_system_prompt_counts_as_read_by_every_replica() -> None:
    index = PrefixIndex()
    index.record_read(key("a"), talk("be brief", "hi", shared=1), 1.0)
    assert index.find_readers(talk("be brief", "ho", shared=1), 2.0) == ({}, 10)
    read, shared = index.find_readers(talk("be brief", "hi", shared=1), 2.0)
    assert (read, shared) == ({key("a"): Read(20, 1.0)}, 10)


def test_a_batchs_system_prompt_counts_as_shared_only_once_the_reader_list_is_full() -> None:
    index, conversation = PrefixIndex(), talk("be brief", "hi", shared=1)
    other = talk("be brief", "ho", shared=1)
    index.record_read(key("a"), conversation, 1.0)
    assert index.find_readers(other, 2.0, of_batch=True) == ({key("a"): Read(10, 1.0)}, 0)
    for number in range(MAX_READERS):
        index.record_read(key(str(number)), conversation, 1.0)
    assert index.find_readers(other, 2.0, of_batch=True) == ({}, 10)


def test_a_nodes_own_statement_counts_like_an_observation() -> None:
    index, conversation = PrefixIndex(), talk("hi", "hello", "how?")
    index.record_reported(key("a"), conversation, Read(20, 5.0), now=7.0)
    assert index.find_readers(conversation, 8.0) == ({key("a"): Read(20, 6.0)}, 0)


def test_memory_is_bounded() -> None:
    index = PrefixIndex()
    for number in range(MAX_READERS + 2):
        index.record_read(key(str(number)), talk("hi"), number)
    assert len(index.find_readers(talk("hi"), 9.0)[0]) == MAX_READERS
    for number in range(MAX_PREFIXES + 10):
        index.record_read(key("a"), talk(str(number)), 0.0)
    assert len(index._readers) == MAX_PREFIXES
    assert index.find_readers(talk("hi"), 9.0) == ({}, 0)
