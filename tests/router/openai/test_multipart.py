"""Laws of reading forms: strictly, in bounded time, and spliced in place."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadRequest
from router.openai import body as bodies
from router.openai import multipart

FORM = "multipart/form-data; boundary=XX"


def form(*parts: tuple[str, bytes], tail: bytes = b"--XX--\r\n") -> bytes:
    """Return a form; a name that ends in `!` is a file."""
    written = b""
    for name, content in parts:
        file = '; filename="f"\r\nContent-Type: image/png' if name.endswith("!") else ""
        head = f'--XX\r\nContent-Disposition: form-data; name="{name.rstrip("!")}"{file}\r\n\r\n'
        written += head.encode() + content + b"\r\n"
    return written + tail


def test_a_form_gives_its_model_and_short_fields_but_not_its_files() -> None:
    body = form(
        ("image!", b"\x89PNG\r\n--X"),
        ("model", b"P/m"),
        ("stream", b"true"),
        ("prompt", b"p" * 5000),
    )
    parsed = bodies.read(body, FORM)
    assert (parsed.model, parsed.stream) == ("P/m", True)
    assert set(parsed.fields) == {"model", "stream"}
    assert parsed.plain


@pytest.mark.parametrize("name", ["project", "Models", "models!"])
def test_a_form_with_a_field_for_nodes_is_not_plain_and_workers_get_it_without_the_field(
    name: str,
) -> None:
    body = form(("model", b"m"), (name, b"p" * 5000), ("image!", b"\x89PNG"))
    assert not bodies.read(body, FORM).plain
    assert bodies.without_node_fields(body, FORM) == form(("model", b"m"), ("image!", b"\x89PNG"))


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "image!", "model!"]), st.binary(max_size=40)), max_size=5
    ),
    st.integers(0, 5),
    st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=20),
)
def test_splicing_a_form_changes_the_field_and_no_other_byte(
    others: list[tuple[str, bytes]], place: int, new: str
) -> None:
    if any(b"--XX" in content for _, content in others):
        return
    before, after = others[:place], others[place:]
    old, expected = (form(*before, ("model", name), *after) for name in (b"old", new.encode()))
    assert bodies.with_model(old, FORM, new) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--XX--\r\n",
        form(("model", b"m"), tail=b""),
        form(("model", b"m"), tail=b"--XX"),
        form(("model", b"m"))[2:],
        b"preamble\r\n" + form(("model", b"m")),
        form(("model", b"m")) + b"x" * 1000,
        form(("", b"m")),
        form(("model", b"m"), ("model", b"n")),
        form(("model", b"\xff")),
        form(("model", b"")),
        form(("model!", b"m")),
        form(("model", b"m")).replace(b"--XX\r\n", b"--XX  \r\n"),
        form(*[("a", b"")] * 65, ("model", b"m")),
        b"--XX\r\nContent-Disposition: form-data; name=" + b"a" * 5000 + b"\r\n\r\n\r\n--XX--\r\n",
        b"--XX\r\nno colon\r\n\r\n\r\n--XX--\r\n",
        b"--XX\r\n\r\n\r\n--XX--\r\n",
    ],
)
def test_a_malformed_form_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        bodies.read(body, FORM)


@pytest.mark.parametrize(
    "body",
    [
        b"--XX" + b"\r\n" * 2_000_000,
        b"--XX\r\n" + b"\r\n--XXx" * 500_000,
        form(("model", b"m"), tail=b"--XX" + b" " * 4_000_000),
        b"--XX\r\n" + b"a" * 4_000_000 + b"\r\n--XX--",
    ],
)
def test_a_form_made_to_cost_a_step_per_byte_is_refused_quickly(body: bytes) -> None:
    began = time.process_time()
    with pytest.raises(BadRequest):
        bodies.read(body, FORM)
    assert time.process_time() - began < 1


def test_a_form_without_a_model_is_sent_unchanged() -> None:
    body = form(("prompt", b"p"))
    assert multipart.with_model(body, FORM, "n") == body


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "image!", "hash", "HASH!"]), st.binary(max_size=40)),
        max_size=6,
    )
)
def test_leaving_out_a_field_removes_its_parts_and_changes_no_other_byte(
    given_parts: list[tuple[str, bytes]],
) -> None:
    if any(b"--XX" in content for _, content in given_parts):
        return
    kept = [(name, content) for name, content in given_parts if name.lower()[:4] != "hash"]
    assert multipart.without(form(*given_parts), FORM, {"hash"}) == form(*kept)


def test_a_delimiter_inside_the_end_of_a_head_hides_no_part() -> None:
    head = b'--XX\r\nContent-Disposition: form-data; name="hash"\r\n\r\n'
    with pytest.raises(BadRequest):
        multipart.without(head + head + b"x\r\n--XX--\r\n", FORM, {"hash"})


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 16_000, 16_384, 17_000, 40_000]),
            st.integers(-120, 120),
            st.sampled_from(
                [b"", b"\r", b"\r\n", b"\r\n-", b"\r\n--", b"\r\n--X", b"--X", b"\n--"]
            ),
            st.booleans(),
        ),
        max_size=3,
    )
)
def test_a_long_part_is_found_whatever_bytes_stand_at_the_edges_of_its_skipped_middle(
    files: list[tuple[int, int, bytes, bool]],
) -> None:
    contents = [
        (b"y" * max(size + more, 0) + tease + b"X" * (30_000 if long else 3) + tease)
        for size, more, tease, long in files
    ]
    given = [(f"a{index}!", content) for index, content in enumerate(contents)]
    body = form(*given, ("model", b"m"))
    if body.count(b"--XX") != len(given) + 2:
        return
    found_parts = multipart.parts(body, FORM)
    assert [(part.name, body[part.start : part.end]) for part in found_parts] == [
        *((name.rstrip("!"), content) for name, content in given),
        ("model", b"m"),
    ]


def test_the_two_ends_of_a_long_part_never_join_to_a_delimiter() -> None:
    """The parser skips the middle of a long part: the bytes before and after it are not adjacent."""
    head = len(b'--XX\r\nContent-Disposition: form-data; name="a"; filename="f"\r\n')
    head += len(b"Content-Type: image/png\r\n\r\n")
    hidden = b'XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nother\r\n'
    for before in range(16 * 1024 - head - 10, 16 * 1024 - head + 1):
        for after in range(1024 - 2 - len(hidden), 1024 + 8 - len(hidden)):
            content = b"y" * before + b"\r\n--" + b"z" * 5000 + hidden + b"z" * after
            parsed = bodies.read(form(("a!", content), ("model", b"m")), FORM)
            assert parsed.model == "m"
