"""Architecture: canonical, hashable, strict about what it is given."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from search_spaces.architecture import (
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
    find_id,
)
from search_spaces.errors import ArchitectureError, UsageError

ENCODER = EncoderStack(8, (EncoderLayer("softmax", 2, 16), EncoderLayer("linear", 1, 8)))
CROSS = DecoderLayer("omni", 2, 16, "softmax", 2, 2)
PLAIN = DecoderLayer("softmax", 2, 16)


def test_equal_networks_are_one_object_with_one_id() -> None:
    first = Architecture(ENCODER)
    second = Architecture(EncoderStack(8, tuple(ENCODER.layers)))
    assert first == second and hash(first) == hash(second) and first.id == second.id
    assert len(first.id) == 12


def test_different_networks_have_different_ids() -> None:
    swapped = Architecture(EncoderStack(8, ENCODER.layers[::-1]))
    assert swapped != Architecture(ENCODER) and swapped.id != Architecture(ENCODER).id


def test_the_id_is_the_hash_of_the_sorted_json() -> None:
    text = '{"encoder":{"embed_dim":8,"layers":[{"attention":"omni","ffn_dim":4,"num_heads":2}]}}'
    network = Architecture(EncoderStack(8, (EncoderLayer("omni", 2, 4),)))
    assert network.id == hashlib.sha256(text.encode()).hexdigest()[:12]


@pytest.mark.parametrize(
    "architecture",
    [
        Architecture(ENCODER),
        Architecture(None, DecoderStack(8, (PLAIN,))),
        Architecture(ENCODER, DecoderStack(4, (CROSS, CROSS))),
        Architecture(None, DecoderStack(8, (PLAIN, PLAIN), 64)),
    ],
)
def test_json_round_trip(architecture: Architecture) -> None:
    again = Architecture.from_json(architecture.to_json())
    assert again == architecture and again.id == architecture.id


def test_json_of_a_decoder_only_network_has_no_cross_attention() -> None:
    data = Architecture(None, DecoderStack(8, (PLAIN,))).to_json()
    assert set(data) == {"decoder"}
    assert set(data["decoder"]["layers"][0]) == {"self_attention", "self_num_heads", "ffn_dim"}


def test_a_memory_is_part_of_a_network_and_none_leaves_no_trace() -> None:
    plain = Architecture(None, DecoderStack(8, (PLAIN,)))
    memory = Architecture(None, DecoderStack(8, (PLAIN,), 64))
    assert memory != plain and memory.id != plain.id
    assert set(plain.to_json()["decoder"]) == {"embed_dim", "layers"}
    assert memory.to_json()["decoder"]["memory_length"] == 64
    text = (
        '{"decoder":{"embed_dim":8,"layers":'
        '[{"ffn_dim":16,"self_attention":"softmax","self_num_heads":2}]}}'
    )
    assert plain.id == hashlib.sha256(text.encode()).hexdigest()[:12]
    none = {"decoder": {**plain.to_json()["decoder"], "memory_length": 0}}
    assert Architecture.from_json(none) == plain


@pytest.mark.parametrize("value", [-1, True, False, 0.0, 8.0, "8", None])
def test_memory_lengths_are_counts(value: object) -> None:
    data = {"decoder": {**Architecture(None, DecoderStack(8, (PLAIN,))).to_json()["decoder"]}}
    data["decoder"]["memory_length"] = value
    with pytest.raises(ArchitectureError, match="memory_length must be a positive integer, or 0"):
        Architecture.from_json(data)


def test_a_memory_needs_softmax_and_no_encoder() -> None:
    linear = dataclasses.replace(PLAIN, self_attention="linear")
    with pytest.raises(ArchitectureError, match="decoder layer 2 is 'linear'; a memory needs"):
        DecoderStack(8, (PLAIN, linear), 64)
    seeing = dataclasses.replace(CROSS, self_attention="softmax")
    with pytest.raises(ArchitectureError, match="memory_length is 64, but the network has an enco"):
        Architecture(ENCODER, DecoderStack(8, (seeing,), 64))


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "8", None])
def test_sizes_are_positive_integers(value: object) -> None:
    with pytest.raises(ArchitectureError, match="ffn_dim must be a positive integer"):
        EncoderLayer("softmax", 2, value)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["quadratic", "", None, 3, ["softmax"]])
def test_attention_kinds_are_known(kind: object) -> None:
    with pytest.raises(ArchitectureError, match="allowed are softmax, linear, omni"):
        EncoderLayer(kind, 2, 8)  # type: ignore[arg-type]


def test_cross_attention_is_given_whole_or_not_at_all() -> None:
    with pytest.raises(ArchitectureError, match="all of cross_attention"):
        DecoderLayer("softmax", 2, 16, "softmax", 2)


def test_ende_connect_reaches_no_deeper_than_the_encoder() -> None:
    deep = dataclasses.replace(CROSS, ende_connect=3)
    with pytest.raises(ArchitectureError, match="ende_connect is 3, but the encoder has 2"):
        Architecture(ENCODER, DecoderStack(8, (deep,)))


def test_a_network_needs_a_stack_and_a_stack_needs_layers() -> None:
    with pytest.raises(ArchitectureError, match="an encoder, a decoder or both"):
        Architecture()
    with pytest.raises(ArchitectureError, match="at least one layer"):
        EncoderStack(8, ())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "JSON object"),
        ({"encodr": {}}, "unknown key 'encodr'"),
        ({"encoder": 3}, "exactly 'embed_dim' and 'layers'"),
        ({"encoder": {"embed_dim": 8}}, "exactly 'embed_dim' and 'layers'"),
        ({"encoder": {"embed_dim": 8, "layers": {}}}, "must be a list"),
        (
            {"encoder": {"embed_dim": 8, "layers": [], "memory_length": 3}},
            "encoder must be an object with exactly 'embed_dim' and 'layers'$",
        ),
        ({"decoder": {"embed_dim": 8, "layer": []}}, "and 'memory_length' where there is one"),
        ({"encoder": {"embed_dim": 8, "layers": [3]}}, "layer 1 of encoder has the keys"),
        ({"encoder": {"embed_dim": 8, "layers": [{"attention": "omni"}]}}, "needed are"),
        ({"encoder": {"embed_dim": "8", "layers": [{}]}}, "layer 1"),
    ],
)
def test_malformed_json_is_refused_by_name(data: object, message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        Architecture.from_json(data)


# -- ids ----------------------------------------------------------------------------------------


def test_an_id_is_found_in_full_or_by_its_first_letters() -> None:
    ids = ["abc1", "abc12", "abd3"]
    assert find_id("abd", ids, "network") == "abd3"
    assert find_id("abc1", ids, "network") == "abc1"  # though another one begins like it


@pytest.mark.parametrize(
    ("given", "letters", "message"),
    [
        ("abc", 1, "several ids begin with abc: abc1, abc2"),
        ("abx", 1, "'abx' is the id of no network of the run; the nearest id is abc"),
        ("", 1, "'' is the id of no network of the run; the nearest id is"),
        ("d", 2, "of an id at least the first 2 letters are needed; given 'd'"),
        ("e", 2, "'e' is the id of no network of the run; the nearest id is"),
    ],
)
def test_any_other_id_is_refused(given: str, letters: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_id(given, ["abc1", "abc2", "d4"], "network of the run", letters)


def test_an_id_where_there_is_none() -> None:
    with pytest.raises(UsageError, match="no network; there is none yet"):
        find_id("abc", [], "network")


def test_without_attention_there_are_no_heads() -> None:
    """Whatever is written of them: equal networks are one object with one id."""
    assert EncoderLayer("skip", 8, 16, 2) == EncoderLayer("skip", 1, 16)
    assert DecoderLayer("skip", 8, 16, self_num_kv_heads=4) == DecoderLayer("skip", 1, 16)
    written = Architecture(EncoderStack(8, (EncoderLayer("skip", 4, 16),))).to_json()
    assert written["encoder"]["layers"] == [{"attention": "skip", "num_heads": 1, "ffn_dim": 16}]


def test_a_decoder_cannot_do_without_its_source() -> None:
    with pytest.raises(ArchitectureError, match="would not see the source"):
        DecoderLayer("softmax", 2, 16, "skip", 2, 1)
