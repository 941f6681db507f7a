"""What messages name is said in the words of whoever reads them."""

from __future__ import annotations

import pickle

import pytest

from search_spaces.errors import DataError, NasError
from search_spaces.wording import RESUME, mark, of_commands, option, told


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("group_by", "--group-by"),
        ("start", "--from"),
        ("settings", "--set"),
        ("columns", "--column"),
        ("columns.label", "--column label=NAME"),
    ],
)
def test_the_commands_have_options(field: str, expected: str) -> None:
    assert option(field) == expected
    assert of_commands(f"give {mark(field)} 3") == f"give {expected} 3"


def test_a_mark_is_what_its_reader_calls_it() -> None:
    text = f"{mark('image_size')} 8, or go on with {mark(RESUME, 'nas resume runs/a b')}"
    assert of_commands(text) == "--image-size 8, or go on with nas resume runs/a b"
    assert told(text, lambda field: f"<{field}>") == "<image_size> 8, or go on with <resume>"


def test_an_error_speaks_as_the_commands_do_and_keeps_its_marks() -> None:
    error = DataError(f"give {mark('image_size')}")
    again = pickle.loads(pickle.dumps(error))
    for one in (error, again):
        assert isinstance(one, NasError) and str(one) == "give --image-size"
        assert told(one.marked, str) == "give image_size"


def test_marks_outlive_what_tidies_texts() -> None:
    text = mark("quality")
    assert " ".join(text.split()) == text.strip() == text and text.splitlines() == [text]
