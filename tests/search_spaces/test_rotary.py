"""Rotary positions have to turn something."""

from __future__ import annotations

import pytest

from search_spaces import parse_space
from search_spaces.errors import SpaceFileError
from tests.search_spaces.test_loading import MINE

HEADS = MINE.replace("qkv_dim = 64", 'head_dim = 8\npositions = "rotary"\nrotary_share = 0.1')


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.1", "0.1", "line 10, model.rotary_share: .* 0.1 turns no pair of the 8 .* to 0.25 or"),
        ("0.1", "0.249", "line 10, model.rotary_share: a rotary_share of 0.249 turns no pair"),
        ("head_dim = 8", "head_dim = 15", "set rotary_share to 0.134 or more, or make heads wid"),
        ("head_dim = 8", "qkv_dim = 64", "no pair of the 16 features of a head, .* to 0.125 or"),
        ("head_dim = 8", "head_dim = 1", "turn pairs of features, and a head has one"),
    ],
)
def test_positions_that_turn_nothing_are_refused(old: str, new: str, message: str) -> None:
    text = HEADS.replace(old, new)
    with pytest.raises(SpaceFileError, match=f"mine.toml, .*{message}"):
        parse_space(text, "mine.toml")
    assert parse_space(text, "kept", kept=True).model.positions == "rotary"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.1", "0.25"),
        ("0.1", "1"),
        ("head_dim = 8\n", "qkv_dim = 80\n"),
        ("head_dim = 8", "head_dim = 20"),
        ('"rotary"', '"learned"'),
    ],
)
def test_what_turns_a_pair_is_taken(old: str, new: str) -> None:
    assert old in HEADS
    parse_space(HEADS.replace(old, new), "mine.toml")


def test_the_share_that_is_advised_turns_a_pair() -> None:
    for width in range(2, 40):
        text = HEADS.replace("head_dim = 8", f"head_dim = {width}").replace("0.1", "0.001")
        with pytest.raises(SpaceFileError, match="set rotary_share to ") as caught:
            parse_space(text, "mine.toml")
        advised = str(caught.value).partition("set rotary_share to ")[2].partition(" ")[0]
        found = parse_space(text.replace("0.001", advised), "mine.toml")
        assert found.model.rotary_dim(width) == 2
