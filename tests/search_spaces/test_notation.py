"""An architecture as one line of text: it comes back as it was, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces import load_space, space_names
from search_spaces.architecture import (
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.errors import ArchitectureError
from search_spaces.interchange import parse_architecture, write_architecture
from search_spaces.notation import from_text, looks_like_text, to_text
from search_spaces.space import SearchSpace
from search_spaces.variation import sample
from tests.support.space_strategies import generator, spaces

NETWORK = Architecture(
    EncoderStack(512, (EncoderLayer("softmax", 8, 2048),) * 3 + (EncoderLayer("linear", 4, 1024),)),
    DecoderStack(
        256,
        (
            DecoderLayer("omni", 8, 2048, "softmax", 4, 2),
            DecoderLayer("omni", 8, 2048, "softmax", 4, 2),
            DecoderLayer("softmax", 8, 3072, "linear", 4, 1),
        ),
    ),
)
LINE = "E512: 3*s8/2048 l4/1024 | D256: 2*o8+s4@2/2048 s8+l4@1/3072"
MEMORY = Architecture(None, DecoderStack(64, (DecoderLayer("softmax", 2, 128),) * 2, 32))


def test_the_line_of_a_network() -> None:
    assert to_text(NETWORK) == f"{LINE} #{NETWORK.id}"
    assert to_text(MEMORY) == f"D64m32: 2*s2/128 #{MEMORY.id}"


def test_a_line_is_read_with_and_without_its_id() -> None:
    assert from_text(LINE) == NETWORK == from_text(to_text(NETWORK))
    without = DecoderStack(8, (DecoderLayer("skip", 1, 64), DecoderLayer("skip", 1, 32)))
    assert from_text("D8: -/64 -/32") == Architecture(None, without)
    assert from_text(to_text(MEMORY)) == MEMORY


def test_spaces_and_line_breaks_do_not_matter() -> None:
    broken = LINE.replace(" ", "  \n ").replace("2*o8", "o8+s4@2/2048 o8")
    assert from_text(f"  {broken}\n#\n{NETWORK.id}  ") == NETWORK


def test_the_line_of_the_documentation_is_a_network() -> None:
    text = (Path(__file__).parents[2] / "docs" / "fairseq.md").read_text("utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("    E512:")]
    assert to_text(from_text(line)) == line.strip()


@pytest.mark.parametrize("name", space_names())
def test_ten_thousand_networks_of_all_spaces_come_back(name: str) -> None:
    space = load_space(name)
    count = -(-10_000 // len(space_names()))
    networks = space.decode(sample(space, np.random.default_rng(7), count))
    assert [from_text(to_text(one)) for one in networks] == networks


@given(space=spaces(max_layers=4, most=3), seed=st.integers(0, 2**16))
def test_networks_of_random_spaces_come_back_in_every_form(space: SearchSpace, seed: int) -> None:
    (network,) = space.decode(sample(space, generator(seed), 1))
    for form in ("json", "text"):
        assert parse_architecture(write_architecture(network, form)) == network


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no stack"),
        ("E512 s8/2048", "is no stack"),
        ("E512: s8/2048 | E512: s8/2048", "allowed are E, D"),
        ("D8: s1+s1@1/4 | E8: s1/4", "allowed are E, D"),
        ("E512: s8", "'s8' is no layer"),
        ("E512: x8/20", "'x8/20' is no layer"),
        ("E512: s8/2048,s8/2048", "is no layer"),
        ("E512:", "at least one layer"),
        ("E0: s1/4", "embed_dim must be"),
        ("E8: s0/4", "num_heads must be"),
        ("E8: s1+s1@1/4", "no cross-attention"),
        ("E8m4: s1/4", "only a decoder"),
        ("D8m4: l1/4", "a memory needs 'softmax'"),
        ("E8: s1/4 | D8: s1+s1@2/4", "ende_connect is 2"),
        ("E8: 0*s1/4", "between 1 and 1000"),
        ("E8: 999999999*s1/4", "between 1 and 1000"),
        ("E8: 600*s1/4 600*s1/4", "between 1 and 1000"),
        (f"E8: s{'9' * 5000}/4", "is no layer"),
        ("E8: " + "s1/4 " * 20_000, "at most 64000 characters"),
        (f"{LINE} #{MEMORY.id}", "not copied whole"),
        (f"{LINE} #", "not copied whole"),
    ],
)
def test_a_wrong_line_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        from_text(text)


@pytest.mark.parametrize("text", ["", "{}", "encoder-embed-dim: 3", "Error: what", "E: s8/4"])
def test_what_does_not_look_like_a_line(text: str) -> None:
    assert not looks_like_text(text)
    assert looks_like_text(f" {LINE}{text}")
