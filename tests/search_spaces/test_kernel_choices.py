"""Several linear kernels in [model]: what ``linear`` among the choices then stands for."""

from __future__ import annotations

import pytest

from search_spaces import dump_space, parse_space
from search_spaces.errors import SpaceFileError
from tests.search_spaces.test_loading import MINE, TRANSLATION

ONE = MINE.replace("qkv_dim = 64", 'qkv_dim = 64\nlinear_kernel = "elu"').replace(
    '["omni", "softmax"]', '["softmax", "linear"]'
)
TWO = ONE.replace('"elu"', '["elu", "hedgehog"]')
LAYER = '\n[encoder.layer.1]\nattention = ["linear"]\n'


def test_linear_stands_for_each_of_several_kernels() -> None:
    listed, written = (
        parse_space(text, "mine.toml")
        for text in (TWO, ONE.replace('"linear"', '"linear:hedgehog", "linear:elu"'))
    )
    assert listed == written and listed.digest == written.digest
    assert listed.model.linear_kernel == "elu"
    kinds = ("softmax", "linear:elu", "linear:hedgehog")
    assert listed.slot("encoder.0.attention").choices == kinds
    assert parse_space(dump_space(listed), "again") == listed


def test_the_first_kernel_is_what_linear_alone_means() -> None:
    other = parse_space(TWO.replace('["elu", "hedgehog"]', '["hedgehog", "elu"]'), "mine.toml")
    assert other.model.linear_kernel == "hedgehog"


def test_a_layer_may_offer_them_alone() -> None:
    space = parse_space(TWO + LAYER, "mine.toml")
    assert space.slot("encoder.0.attention").choices[0] == "softmax"
    assert space.slot("encoder.1.attention").choices == ("linear:elu", "linear:hedgehog")
    assert parse_space(dump_space(space), "again") == space


def test_a_list_of_one_is_a_setting() -> None:
    assert parse_space(TWO.replace(', "hedgehog"', ""), "mine.toml") == parse_space(ONE, "one")


def test_other_variants_may_stand_beside() -> None:
    space = parse_space(TWO.replace('"linear"]', '"linear", "linear:norm"]'), "mine.toml")
    assert len(space.slot("encoder.0.attention").choices) == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["elu", "hedgehog"]', "[]", "line 9, model.linear_kernel: found no kernel, allowed are"),
        ('"hedgehog"', '"elu"', "line 9, model.linear_kernel: found 'elu' more than once; each"),
        ('"hedgehog"', '"hedgehogs"', r"linear_kernel: found 'hedgehogs' \(did you mean 'hedgehog"),
        ('"hedgehog"', "3", "line 9, model.linear_kernel: found '?3'?, allowed are cosformer"),
        ('"hedgehog"', '["norm"]', "line 9, model.linear_kernel: found "),
        ('["elu", "hedgehog"]', '"elo"', "line 9, model.linear_kernel: found 'elo', allowed are"),
        ('"linear"]', '"linear", "linear:elu"]', "line 18, encoder.attention: found 'linear' and "),
        ('"linear"]', '"linear", "linear"]', "encoder.attention: found 'linear:elu' more than on"),
    ],
)
def test_a_mistake_is_named(old: str, new: str, message: str) -> None:
    assert old in TWO
    with pytest.raises(SpaceFileError, match=f"mine.toml, .*{message}"):
        parse_space(TWO.replace(old, new, 1), "mine.toml")


def test_a_kernel_that_cannot_stand_between_stacks_is_named() -> None:
    def text(kernels: str) -> str:
        listed = TRANSLATION.replace("qkv_dim = 64", f"qkv_dim = 64\nlinear_kernel = {kernels}")
        return listed.replace('cross_attention = ["softmax"]', 'cross_attention = ["linear"]')

    space = parse_space(text('["elu", "norm"]'), "mine.toml")
    assert space.slot("decoder.0.cross_attention").choices == ("linear:norm", "linear:elu")
    with pytest.raises(SpaceFileError, match="cross_attention: found 'linear:decay_channel', whi"):
        parse_space(text('["elu", "decay_channel"]'), "mine.toml")
