"""JSON is bounded before it is parsed."""

from __future__ import annotations

import httpx
import pytest

from service.api.bounds import MAX_DEPTH, MOST_DIGITS, MOST_KEYS, MOST_VALUES, check_json
from service.api.problems import ProblemError
from tests.support import service_api_cases
from tests.support.service_cases import problem

server, alice = service_api_cases.server, service_api_cases.alice


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * (MAX_DEPTH + 1), 422),
        (b'{"a":' * (MAX_DEPTH + 1), 422),
        (b"[" + b"1," * MOST_VALUES + b"1]", 422),
        (b"[" + b"{}," * MOST_VALUES, 422),
        (b"{" + b'"a":1,' * (MOST_KEYS + 1) + b"}", 422),
        (b'{"seed": ' + b"9" * (MOST_DIGITS + 1) + b"}", 422),
        ('{"a": 1}'.encode("utf-16"), 400),
        (b'"' + b"\\" * 100_001 + b'"' + b"[" * 21, 422),
    ],
)
def test_json_is_bounded_before_it_is_parsed(body: bytes, status: int) -> None:
    with pytest.raises(ProblemError) as caught:
        check_json(body)
    assert caught.value.status == status


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "' + b'[,{\\"' * 30_000 + b'"}',
        b'{"a": "' + b"1" * 30_000 + b'"}',
        b"[" + b"[]," * 5000 + b"[]]",
        b"",
        b"[" * 20,
    ],
)
def test_what_stands_in_strings_does_not_count(body: bytes) -> None:
    check_json(body)


@pytest.mark.parametrize(
    "kind", ["application/json", "application/x-www-form-urlencoded+json", "text/plain; a", ""]
)
def test_only_what_can_be_no_json_is_not_looked_at(alice: httpx.Client, kind: str) -> None:
    body = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)
    answer = alice.post("/jobs", content=body, headers={"Content-Type": kind})
    assert ("nested" in problem(answer, 422)) is (not kind.startswith("text/plain"))


def test_deep_values_are_refused_in_a_short_sentence(alice: httpx.Client) -> None:
    text = '{"space": ' + "[" * 900 + "]" * 900 + "}"
    answer = alice.post("/jobs", content=text, headers={"Content-Type": "application/json"})
    assert "nested" in problem(answer, 422)


def test_numbers_of_any_length_are_refused_in_a_sentence(alice: httpx.Client) -> None:
    for digits, words, field in (
        (MOST_DIGITS, "less than or equal to", "/seed"),
        (MOST_DIGITS + 1, "a number of more than 4300 digits", None),
    ):
        text = f'{{"space": "digits", "seed": {"9" * digits}}}'
        answer = alice.post("/jobs", content=text, headers={"Content-Type": "application/json"})
        assert words in problem(answer, 422, field)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("/seed", {"seed": True}),
        ("/threads", {"threads": False}),
        ("/retrain", {"retrain": True}),
        ("/priority", {"priority": True}),
        ("/limits/params", {"limits": {"params": True}}),
    ],
)
def test_true_and_false_are_no_numbers(
    alice: httpx.Client, field: str, values: dict[str, object]
) -> None:
    answer = alice.post("/jobs", json={"space": "digits", "preset": "smoke", **values})
    assert "should be a number, not true or false" in problem(answer, 422, field)
