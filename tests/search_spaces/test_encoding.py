"""Encoding: the numbers agree with the architecture they describe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from search_spaces import Architecture, load_space, parse_space
from search_spaces.architecture import AttentionKind, EncoderLayer, EncoderStack
from search_spaces.encoding import cost_terms, encode_features, feature_names
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.variation import distinct, enumerate_all, sample
from tests.support.memory_cases import SPACE
from tests.support.space_strategies import generator, spaces


def _named(space: SearchSpace, rows: Genotypes) -> list[dict[str, float]]:
    names = feature_names(space)
    return [dict(zip(names, row, strict=True)) for row in encode_features(space, rows)]


@given(spaces(max_layers=3, most=3))
def test_names_are_unique_and_numbers_finite(space: SearchSpace) -> None:
    features = encode_features(space, sample(space, generator(), 20))
    names = feature_names(space)
    assert features.shape == (20, len(names)) and features.dtype == np.float64
    assert len(set(names)) == len(names) and np.isfinite(features).all()


def test_layers_and_sums_agree_with_the_architecture() -> None:
    space = load_space("digits")
    rows = sample(space, generator(), 200)
    for architecture, named in zip(space.decode(rows), _named(space, rows), strict=True):
        stack = architecture.encoder
        assert stack is not None
        assert named["encoder.embed_dim"] == stack.embed_dim
        assert named["encoder.num_layers"] == len(stack.layers)
        for number, layer in enumerate(stack.layers):
            assert named[f"encoder.{number}.ffn_dim"] == layer.ffn_dim
            assert named[f"encoder.{number}.attention={layer.attention}"] == 1
        total = sum(layer.ffn_dim for layer in stack.layers)
        assert named["encoder.sum.ffn_dim"] == total
        assert named["encoder.mean.ffn_dim"] == pytest.approx(total / len(stack.layers))
        assert named["encoder.embed_dim*sum.ffn_dim"] == stack.embed_dim * total
        linear = [layer.num_heads for layer in stack.layers if layer.attention == "linear"]
        assert named["encoder.count.attention=linear"] == len(linear)
        assert named["encoder.sum.num_heads.attention=linear"] == sum(linear)


def test_layers_that_are_not_there_are_zero() -> None:
    space = load_space("digits")
    rows = sample(space, generator(), 100)
    shallow = _named(space, rows[space.depths(rows, "encoder") == 1])[0]
    beyond = [value for name, value in shallow.items() if name.startswith("encoder.1.")]
    assert beyond and not any(beyond)


def test_the_place_of_a_kind_is_its_mean_relative_depth() -> None:
    space = load_space("digits")
    kinds: tuple[AttentionKind, ...] = ("linear", "softmax", "softmax", "linear")
    stack = EncoderStack(8, tuple(EncoderLayer(kind, 1, 8) for kind in kinds))
    named = _named(space, space.encode([Architecture(stack)]))[0]
    assert named["encoder.place.attention=linear"] == pytest.approx((1 + 4) / 2 / 4)
    assert named["encoder.place.attention=omni"] == 0


@given(spaces(max_layers=2, most=2).filter(lambda space: space.size <= 2000))
def test_different_networks_have_different_features(space: SearchSpace) -> None:
    features = encode_features(space, enumerate_all(space))
    assert len(np.unique(features, axis=0)) == space.size


def test_a_pruned_row_encodes_like_its_translation() -> None:
    root = load_space("digits")
    cut = root.restrict({"encoder.attention": ["omni", "linear"], "encoder.num_layers": [2]})
    rows = distinct(sample(cut, generator(), 50))
    direct = encode_features(root, root.encode(cut.decode(rows)))
    assert np.array_equal(encode_features(root, cut.translate(rows, root)), direct)


def test_decoders_have_their_own_columns() -> None:
    names = feature_names(load_space("wmt14"))
    for name in ("decoder.5.cross_attention=omni", "decoder.sum.ende_connect"):
        assert name in names
    assert "encoder.embed_dim*decoder.num_layers" in names
    language_model = feature_names(load_space("wikitext103"))
    assert not any("cross" in name or name.startswith("encoder") for name in language_model)


def test_a_memory_has_columns_of_its_own() -> None:
    space = parse_space(SPACE, "small-xl")
    rows = sample(space, generator(), 60)
    for architecture, named in zip(space.decode(rows), _named(space, rows), strict=True):
        stack = architecture.decoder
        assert stack is not None
        memory = stack.memory_length
        assert named["decoder.memory_length"] == memory
        assert named["decoder.memory_length*num_layers"] == memory * len(stack.layers)
        heads = sum(layer.self_num_heads for layer in stack.layers)
        assert named["decoder.memory_length*sum.self_num_heads"] == memory * heads
    assert not any("memory" in name for name in feature_names(load_space("wikitext103")))


@given(spaces(max_layers=3, most=3))
def test_time_is_a_sum_over_layers_times_widths(space: SearchSpace) -> None:
    names = feature_names(space)
    terms = ["*".join(names[i] for i in factors) for factors in cost_terms(space)]
    assert len(set(terms)) == len(terms)
    for stack in space.stacks:
        width = f"{stack}.embed_dim"
        assert {f"{stack}.sum.ffn_dim", f"{stack}.num_layers*{width}*{width}"} < {*terms}
    assert not any(".0." in name or ".mean." in name or ".place." in name for name in terms)


def test_no_rows_give_no_features() -> None:
    space = load_space("digits")
    assert encode_features(space, space.encode([])).shape == (0, len(feature_names(space)))
