"""What omni layers take from which layer, against weights that are computed one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from search_spaces.architecture import Architecture
from search_spaces.settings import ModelSettings
from supernet.attention.kernels import build_kernel
from supernet.attention.weights import pooled_shares, source_weights
from supernet.extraction import Supernet
from supernet.loss import IGNORED
from supernet.omni_shares import omni_shares
from supernet.plan import encoder_of
from supernet.tasks.base import Predictions
from tests.support import naive_attention as naive
from tests.support.decoder_cases import SETTINGS as DECODERS
from tests.support.decoder_cases import (
    random_translator,
    random_writer,
    sources,
    targets,
    translator,
    writer,
)
from tests.support.supernet_cases import (
    IMAGES,
    SETTINGS,
    TOKENS,
    network,
    random_inputs,
    random_supernet,
)

SPAN = 3
DEEP = network("softmax", "linear", "omni")


def task(*inputs: Tensor) -> Any:
    """A task whose validation split is one batch; each token of a text has a label."""
    return labelled(inputs[-1].masked_fill(inputs[-1] == 0, IGNORED), *inputs)


def labelled(labels: Tensor, *inputs: Tensor) -> Any:
    """As `task`, with these labels."""

    def evaluation(model: Supernet, architecture: Architecture, *_: Any) -> Iterator[Predictions]:
        yield Predictions(model(*inputs, architecture), labels.flatten())

    return SimpleNamespace(evaluation=evaluation, valid=None)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def by_source(weights_BHNM: Tensor) -> Tensor:
    """Adds the weights of the keys of each source, one after the other."""
    parts = [weights_BHNM[..., source::SPAN].sum(dim=-1) for source in range(SPAN)]
    return torch.stack(parts, dim=-1)


# -- one kernel -----------------------------------------------------------------------------------

STATES = 14 * SPAN
MASK = torch.arange(STATES) < torch.tensor([STATES, 5 * SPAN])[:, None]


@pytest.mark.parametrize("kernel", ["full", "performer", "bigbird"])
@pytest.mark.parametrize("mask", [None, MASK])
def test_weights_are_those_that_the_kernel_uses(kernel: Any, mask: Tensor | None) -> None:
    built = build_kernel("omni", replace(IMAGES, omni_kernel=kernel), 8, SPAN, "encoder")
    q, k = drawn(2, 2, STATES, 4), drawn(2, 2, STATES, 4, seed=1)
    every = torch.eye(STATES, dtype=torch.float64).expand(2, 2, STATES, STATES)
    twins = {
        "full": lambda: naive.softmax(q, k, every, mask),
        "performer": lambda: naive.performer(q, k, every, mask),
        "bigbird": lambda: naive.bigbird(q, k, every, mask, built.priority, 1, SPAN),
    }
    found, expected = source_weights(built, q, k, mask, SPAN), by_source(twins[kernel]())
    real = slice(None) if mask is None else mask[:, None].expand(2, 2, STATES)
    torch.testing.assert_close(found[real], expected[real])
    torch.testing.assert_close(found[real].sum(-1), torch.ones_like(found[real][..., 0]))


def test_weights_that_may_be_negative_are_added_without_their_sign() -> None:
    settings = replace(IMAGES, omni_kernel="linformer")
    kernel: Any = build_kernel("omni", settings, 8, SPAN, "encoder").double()
    q, k = drawn(2, 2, STATES, 4), drawn(2, 2, STATES, 4, seed=1)
    every = torch.eye(STATES, dtype=torch.float64).expand(2, 2, STATES, STATES)
    twin = naive.linformer(q, k, every, MASK, kernel.projection_KTP.detach(), SPAN)
    expected = by_source(twin.abs())
    found = source_weights(kernel, q, k, MASK, SPAN)
    torch.testing.assert_close(found, expected / expected.sum(-1, keepdim=True))
    assert (twin < 0).any()


def test_pooling_counts_the_largest_and_divides_draws() -> None:
    states = torch.tensor([[[1.0, 5.0], [2.0, 5.0], [0.0, 1.0], [0.0, 0.0]]])  # two positions
    assert pooled_shares(states, 2).tolist() == [[[0.25, 0.75], [0.75, 0.25]]]


# -- whole networks -------------------------------------------------------------------------------


def naive_shares(model: Any, settings: ModelSettings, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Runs the layers of `DEEP` by hand; attention ``(H, P, P)`` and pooling ``(P,)``."""
    encoder = encoder_of(DEEP)
    outputs = [model.embedding(inputs, encoder.embed_dim)]
    mask = model.real_positions(inputs)
    for block, layer in zip(model.encoder.blocks[:2], encoder.layers[:2], strict=True):
        outputs.append(block(outputs[-1], layer, mask))
    block, layer = model.encoder.blocks[2], encoder.layers[2]
    states = torch.stack(outputs, dim=2).flatten(1, 2)
    wide = None if mask is None else mask.repeat_interleave(SPAN, dim=1)
    own = block.attention.projections["shared"]
    normed = block.attention_norm(states)
    q, k = block.attention.heads(
        block.attention.kernels["omni"], (own.query, own.key), normed, layer.num_heads
    )
    every = torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:2], k.shape[2], k.shape[2])
    weights = by_source(naive.softmax(q, k, every, wide)).unflatten(2, (-1, SPAN))
    real = torch.ones(outputs[0].shape[:2], dtype=torch.bool) if mask is None else mask
    kept = pooled_shares(block(states, layer, wide, SPAN), SPAN)
    return weights.transpose(1, 2)[real].mean(0), kept[real].mean(0)


@pytest.mark.parametrize("base", [IMAGES, TOKENS, replace(TOKENS, class_token=True)])
def test_shares_are_those_of_the_layers_run_by_hand(base: ModelSettings) -> None:
    settings = replace(base, omni_kernel="full")
    model, inputs = random_supernet(settings).eval(), random_inputs(settings)
    with torch.no_grad():
        attention, pooling = naive_shares(model, settings, inputs)
    (found,), _ = omni_shares(task(inputs), model, DEEP)
    assert (found.stack, found.layer, found.sources) == ("encoder", 3, (0, 1, 2))
    np.testing.assert_allclose(found.attention, attention.numpy(), atol=1e-6)
    np.testing.assert_allclose(found.pooling, pooling.numpy(), atol=1e-6)


@pytest.mark.parametrize("name", SETTINGS)
def test_all_shares_add_up_and_the_model_stays_as_it_is(name: str) -> None:
    settings = SETTINGS[name]
    model, inputs = random_supernet(settings).train(), random_inputs(settings)
    before = set(vars(model.encoder.blocks[2].attention.kernels["omni"]))  # type: ignore[union-attr,operator,index,arg-type]
    layers, _ = omni_shares(task(inputs), model, DEEP)
    assert len(layers) == 1
    np.testing.assert_allclose(np.sum(layers[0].attention, axis=-1), 1.0, rtol=1e-5)
    assert sum(layers[0].pooling) == pytest.approx(1.0, rel=1e-5)
    assert model.training
    assert set(vars(model.encoder.blocks[2].attention.kernels["omni"])) == before  # type: ignore[union-attr,operator,index,arg-type]


def test_layers_in_the_order_of_inherited_weights() -> None:
    """A network of three layers has the fourth block of an order in place of the third."""
    inputs = random_inputs(IMAGES)
    found = []
    for ordered in (True, False):
        model = random_supernet(IMAGES).eval()
        first, second, third, fourth = model.encoder.blocks
        if ordered:
            model.encoder.order_layers([0, 1, 3, 2])
        else:
            model.encoder.blocks = nn.ModuleList([first, second, fourth, third])
        found.append(omni_shares(task(inputs), model, DEEP)[0][0])
    here, there = found
    assert (here.layer, here.sources) == (there.layer, there.sources) == (3, (0, 1, 2))
    assert (here.attention, here.pooling) == (there.attention, there.pooling)


def test_padding_changes_no_share() -> None:
    settings = replace(TOKENS, omni_kernel="full")
    model, inputs = random_supernet(settings).eval(), random_inputs(settings)
    longer = torch.cat((inputs, torch.zeros(len(inputs), 3, dtype=torch.long)), dim=1)
    (one,), _ = omni_shares(task(inputs), model, DEEP)
    (other,), _ = omni_shares(task(longer), model, DEEP)
    assert (one.attention, one.pooling) == (other.attention, other.pooling)


def test_other_inputs_change_the_shares() -> None:
    model = random_supernet(IMAGES).eval()
    (one,), _ = omni_shares(task(random_inputs(IMAGES)), model, DEEP)
    (other,), _ = omni_shares(task(random_inputs(IMAGES, seed=1)), model, DEEP)
    assert np.abs(np.subtract(one.attention, other.attention)).max() > 1e-4


# -- decoders -------------------------------------------------------------------------------------


def test_the_padding_behind_a_target_does_not_count() -> None:
    settings = DECODERS["plain"]
    model, chosen = random_translator(settings), translator(("softmax", "omni"))
    source, target = sources(settings), targets(settings)
    longer = torch.cat((target, torch.zeros(len(target), 2, dtype=torch.long)), dim=1)
    one, _ = omni_shares(task(source, target), model, chosen)
    other, _ = omni_shares(task(source, longer), model, chosen)
    assert [(layer.stack, layer.layer) for layer in one] == [("encoder", 3), ("decoder", 2)]
    for here, there in zip(one, other, strict=True):
        assert (here.attention, here.pooling) == (there.attention, there.pooling)


def test_a_word_that_is_token_0_counts_in_a_language_model() -> None:
    """Also at the end of a text, in front of padding: what has a label is no padding."""
    model, chosen = random_writer(DECODERS["plain"]), writer("linear", "omni")
    text = targets(DECODERS["plain"])[1:2, :12]
    text[:, [3, 7, 11]] = 0
    labels = torch.ones_like(text)
    (alone,), _ = omni_shares(labelled(labels, text), model, chosen)
    long = torch.cat((text, torch.zeros(1, 3, dtype=torch.long)), dim=1)
    ignored = torch.nn.functional.pad(labels, (0, 3), value=IGNORED)
    (behind,), _ = omni_shares(labelled(ignored, long), model, chosen)
    assert (alone.attention, alone.pooling) == (behind.attention, behind.pooling)
    (few,), _ = omni_shares(task(text), model, chosen)
    assert np.abs(np.subtract(alone.attention, few.attention)).max() > 1e-4


@pytest.mark.parametrize("name", ["plain", "bigbird", "full"])
def test_a_decoder_pays_its_attention_to_the_past(name: str) -> None:
    model = random_writer(DECODERS[name])
    first = targets(DECODERS[name])[:, :1]
    (found,), _ = omni_shares(task(first), model, writer("linear", "omni"))
    np.testing.assert_allclose(np.sum(found.attention, axis=-1), 1.0, rtol=1e-5)
    assert found.sources == (0, 1)


# -- maps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["images", "linformer", "class token read"])
def test_maps_of_images_add_up_to_the_shares(name: str) -> None:
    settings = SETTINGS[name]
    inputs = random_inputs(settings, batch=2)
    model = random_supernet(settings).eval()
    (shares,), maps = omni_shares(task(inputs[:1]), model, DEEP, maps=3)
    assert [(one.example, one.layer) for one in maps] == [(0, 3)]
    assert np.shape(maps[0].attention) == np.shape(maps[0].pooling) == (3, 16)
    np.testing.assert_allclose(np.sum(maps[0].pooling, axis=0), 1.0, rtol=1e-5)
    if name == "images":  # no class token: all queries, all positions
        expected = np.mean(shares.attention, axis=(0, 1))
        np.testing.assert_allclose(np.sum(maps[0].attention, axis=1), expected, atol=1e-5)
    else:
        assert np.sum(maps[0].attention) <= 1 + 1e-5


def test_texts_have_no_maps() -> None:
    model = random_supernet(TOKENS).eval()
    assert omni_shares(task(random_inputs(TOKENS)), model, DEEP, maps=3)[1] == ()
