"""Which choices are protected, in words and in the space."""

from __future__ import annotations

import pytest

from nas.request.protected_choices import (
    deepest_layers,
    everything,
    places,
    read_protected,
    spelled,
)
from search_spaces.errors import UnknownNameError, UsageError
from search_spaces.loading import load_space

DIGITS = load_space("digits")


def test_genes_and_slots_several_choices_and_repetitions() -> None:
    given = ["encoder.2.ffn_dim=64", "encoder.attention = omni , linear"]
    read = read_protected(DIGITS, [*given, "encoder.attention=omni"])
    assert read == {"encoder.attention": ("linear", "omni"), "encoder.2.ffn_dim": (64,)}
    assert read_protected(DIGITS, spelled(DIGITS, read)) == read


def test_all_and_none() -> None:
    every = read_protected(DIGITS, ["all"])
    assert every == everything(DIGITS) and spelled(DIGITS, every) == ["all"]
    assert len(places(DIGITS, every)) == sum(len(slot.choices) for slot in DIGITS.slots)
    assert read_protected(DIGITS, ["none"]) == read_protected(DIGITS, []) == {}
    assert spelled(DIGITS, {}) == []


@pytest.mark.parametrize("text", ["", "omni", "=omni", "encoder.attention=", "encoder.attention=,"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--keep takes GENE=CHOICE"):
        read_protected(DIGITS, [text])


@pytest.mark.parametrize("word", ["all", "none"])
def test_the_words_stand_alone(word: str) -> None:
    with pytest.raises(UsageError, match="stand alone"):
        read_protected(DIGITS, ["encoder.attention=omni", word])


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("attention=omni", "'encoder.attention'"),
        ("encoder.4.attention=omni", r"'encoder.\d.attention'"),
        ("encoder.attention=omny", "'omni'"),
        ("encoder.ffn_dim=65", "4, 8, 16, 32, 64"),
    ],
)
def test_what_the_space_has_not_is_refused_with_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError, match=nearest):
        read_protected(DIGITS, [text])


def test_a_gene_covers_all_layers_and_a_slot_one() -> None:
    assert len(places(DIGITS, {"encoder.attention": ("omni",)})) == 4
    column = DIGITS.slot_index["encoder.2.attention"]
    assert places(DIGITS, {"encoder.2.attention": ("omni",)}) == {(column, 2)}


def test_the_deepest_layer_that_is_protected() -> None:
    named = ["encoder.1.ffn_dim", "encoder.2.attention", "encoder.attention", "encoder.embed_dim"]
    assert deepest_layers(DIGITS, named) == {"encoder": 2}
    assert deepest_layers(DIGITS, named[2:]) == {}
