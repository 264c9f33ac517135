"""Chunks: short enough, nothing lost between them, and words kept whole."""

from node.provide.vectors.chunks import CHARACTERS, cut


def test_a_short_text_is_one_chunk_and_a_blank_text_has_none():
    assert list(cut("a vine", 100, 50)) == ["a vine"]
    assert list(cut(" \n ", 100, 50)) == []


def test_chunks_overlap_and_lose_no_word():
    words = [f"word{n}" for n in range(2_000)]
    found = list(cut(" ".join(words), 100, 50))
    assert all(len(chunk) <= 100 * CHARACTERS for chunk in found)
    assert {word for chunk in found for word in chunk.split()} >= set(words)
    assert len(found) > len(" ".join(words)) / (100 * CHARACTERS)


def test_a_text_without_spaces_is_cut_anywhere():
    assert "".join(cut("x" * 1_000, 100, 0)) == "x" * 1_000
