"""The plain translation networks compute what ours do, or a comparison of speed says nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from experiments import network_speed
from experiments.network_speed import largest_network, translation_step_ratio
from experiments.plain_networks import CachedDecoderLayer, PlainDecoding, plain_translation
from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from search_spaces.settings import ModelSettings, TokenInput
from search_spaces.space import SearchSpace
from supernet.attention.linear import CosformerKernel
from supernet.sequence_models import TranslationModel
from tests.support.decoder_cases import (
    TEXT,
    random_translator,
    sources,
    targets,
    translation_space,
    translator,
)
from tests.support.supernet_cases import gradients

SHARED = replace(TEXT, input=TokenInput(11, share_embeddings=True))
SQUARE = {"embed_dim": [8], "num_heads": [2], "self_num_heads": [2], "cross_num_heads": [2]}


def square_space(settings: ModelSettings = TEXT) -> SearchSpace:
    """Attention as wide as the embeddings, to the last layer of the encoder only."""
    space = translation_space(settings)
    genes = {slot.gene_name for slot in space.slots}
    choices = {gene: SQUARE[gene.split(".")[1]] for gene in genes if gene.split(".")[1] in SQUARE}
    return space.restrict({**choices, "decoder.ende_connect": [1]})


def models(settings: ModelSettings = TEXT) -> tuple[TranslationModel, Architecture]:
    return random_translator(settings), largest_network(square_space(settings), "softmax")


@pytest.mark.parametrize("settings", [TEXT, SHARED], ids=["two tables", "one table"])
def test_the_plain_network_is_the_elastic_one(settings: ModelSettings) -> None:
    supernet, architecture = models(settings)
    plain, texts = plain_translation(supernet, architecture), (sources(TEXT), targets(TEXT))
    expected = supernet(*texts, architecture)
    torch.testing.assert_close(plain(*texts), expected, rtol=1e-11, atol=1e-11)
    mine = gradients(plain, plain(*texts))["decoder.0.self_attention.query.weight"]
    theirs = gradients(supernet, supernet(*texts, architecture))
    own = theirs["decoder.blocks.0.self_attention.projections.shared.query.weight"]
    assert mine is not None and own is not None
    torch.testing.assert_close(mine, own[:8, :8], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("settings", [replace(TEXT, norm="post"), replace(TEXT, positions="none")])
def test_other_settings_are_refused(settings: ModelSettings) -> None:
    with pytest.raises(UsageError, match="the plain translation network has softmax attention"):
        plain_translation(*models(settings))


def test_other_attention_is_refused() -> None:
    with pytest.raises(UsageError, match="choose an architecture that has these"):
        plain_translation(random_translator(TEXT), translator())


def test_another_shape_is_not_torchs() -> None:
    supernet = random_translator(TEXT)
    space = translation_space(TEXT).restrict({"decoder.ende_connect": [1]})
    plain = plain_translation(supernet, largest_network(space, "softmax"))
    with pytest.raises(UsageError, match="one width and one number of heads"):
        PlainDecoding(plain)


@torch.no_grad()
@pytest.mark.parametrize("copies", [1, 4])
def test_the_plain_decoder_writes_what_ours_does(copies: int) -> None:
    supernet, architecture = models()
    plain, source_SM = PlainDecoding(plain_translation(supernet, architecture)), sources(TEXT)
    ours, theirs = supernet.start(source_SM, architecture), plain.start(source_SM, copies)
    tokens = torch.randint(1, 9, (12, 4), generator=torch.Generator().manual_seed(0))
    rows, kept = torch.tensor([1, 1, 0, 3, 8, 8, 11, 9]), torch.tensor([0, 2])
    for position in range(4):
        expected, ours = supernet.step(tokens[: len(tokens), position, None], ours)
        found, theirs = plain.step(tokens[:, position, None], theirs)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        if position == 1:  # the second sentence is done
            ours = ours.reorder(rows).keep_sources(kept)
            theirs = theirs.reorder(rows).keep_sources(kept)
            tokens = tokens[rows]


@torch.no_grad()
def test_the_cached_layer_is_torchs_own() -> None:
    supernet, architecture = models()
    layer = PlainDecoding(plain_translation(supernet, architecture)).decoder[0]
    assert isinstance(layer, CachedDecoderLayer)
    x_BND, encoded_BMD = torch.randn(3, 5, 8).double(), torch.randn(3, 6, 8).double()
    real_BM = torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
    future = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    padding = torch.zeros(3, 6).double().masked_fill(~real_BM, -torch.inf)
    expected = layer(x_BND, encoded_BMD, future, memory_key_padding_mask=padding)
    memory, past, found = layer.memory(encoded_BMD), None, list[Tensor]()
    for x_B1D in x_BND.split(1, dim=1):
        out, past = layer.step(x_B1D, past, memory, real_BM[:, None, None, :])
        found.append(out)
    torch.testing.assert_close(torch.cat(found, dim=1), expected, rtol=1e-11, atol=1e-11)


def test_both_translation_steps_are_timed() -> None:
    result = translation_step_ratio(square_space(), seconds=0.0)
    assert result.rounds == 15 and result.low <= result.ratio <= result.high


def test_all_decoders_write_the_same_texts() -> None:
    space = square_space(replace(TEXT, max_length=64))
    texts = [decoder() for decoder in network_speed.beam_decoders(space, 2).values()]
    assert len(texts) == 3 and texts[0] == texts[1] == texts[2] and len(texts[0][0]) > 1


@torch.inference_mode()
def test_a_step_is_timed_at_its_position() -> None:
    space = square_space(replace(TEXT, max_length=20))
    last, beyond = network_speed.decoding_steps(space, "linear", (19, 20))
    last()
    with pytest.raises(UsageError, match="max_length is 20"):
        beyond()


class TestPeakBytes:
    def test_of_what_is_held_at_once(self) -> None:
        def call() -> Tensor:
            one = torch.empty(1000, 100)
            two = one + 1
            del one
            return two @ torch.empty(100, 50)

        assert 800_000 <= network_speed.peak_bytes(call) < 800_100  # and the number that is added

    def test_of_freed_tensors(self) -> None:
        assert network_speed.peak_bytes(lambda: [len(torch.empty(1000)) for _ in range(9)]) == 4000

    def test_linear_attention_grows_with_the_length(self) -> None:
        kernel = CosformerKernel(512)
        calls = [network_speed.forward_and_backward(kernel, n, 8, 16) for n in (256, 512)]
        short, long = (network_speed.peak_bytes(call) for call in calls)
        assert 1.9 * short < long < 2.1 * short
