"""Translation and language models: elastic, causal, and the same step by step as all at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from search_spaces.architecture import Architecture, AttentionKind
from search_spaces.costs import params
from search_spaces.errors import UsageError
from search_spaces.settings import ModelSettings, TokenInput
from search_spaces.variation import largest, smallest
from supernet.building import build_supernet
from supernet.extraction import StandAlone, extract
from supernet.sequence_models import LanguageModel, TranslationModel
from tests.supernet.test_extraction import check_gradients
from tests.support.decoder_cases import (
    SETTINGS,
    TEXT,
    language_space,
    random_translator,
    random_writer,
    sources,
    targets,
    translation_space,
    translator,
    writer,
)
from tests.support.supernet_cases import gradients, random_networks

each_setting = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
OMNI: tuple[AttentionKind, ...] = ("softmax", "linear", "omni")


def translators(settings: ModelSettings) -> list[Architecture]:
    """Random networks, both ends, omni layers of several spans."""
    space = translation_space(settings)
    ends = space.decode(np.concatenate([smallest(space), largest(space)]))
    return [*ends, translator(OMNI, ("omni", "omni", "linear")), *random_networks(space, 4)]


def writers(settings: ModelSettings) -> list[Architecture]:
    space = language_space(settings)
    ends = space.decode(np.concatenate([smallest(space), largest(space)]))
    return [*ends, writer("softmax", "linear", "omni", "omni"), *random_networks(space, 4)]


class TestElastic:
    @each_setting
    def test_translation_equals_stand_alone(self, settings: ModelSettings) -> None:
        supernet, inputs = random_translator(settings), (sources(settings), targets(settings))
        for architecture in translators(settings):
            small = extract(supernet, architecture)
            elastic, alone = supernet(*inputs, architecture), small(*inputs)
            torch.testing.assert_close(elastic, alone, rtol=0, atol=1e-9)
            check_gradients(gradients(supernet, elastic), gradients(small.network, alone))

    @each_setting
    def test_language_model_equals_stand_alone(self, settings: ModelSettings) -> None:
        supernet, inputs = random_writer(settings), sources(settings)
        for architecture in writers(settings):
            small = extract(supernet, architecture)
            elastic, alone = supernet(inputs, architecture), small(inputs)
            torch.testing.assert_close(elastic, alone, rtol=0, atol=1e-9)
            check_gradients(gradients(supernet, elastic), gradients(small.network, alone))

    @each_setting
    def test_parameters_are_those_of_the_cost_model(self, settings: ModelSettings) -> None:
        models = [(random_translator(settings), one) for one in translators(settings)]
        models += [(random_writer(settings), one) for one in writers(settings)]
        for supernet, architecture in models:
            small = extract(supernet, architecture)
            task = "translation" if architecture.encoder else "language_modelling"
            held = sum(parameter.numel() for parameter in small.parameters())
            assert held == params(settings, task, architecture)
            assert held == sum(t.numel() for t in small.state_dict().values())

    def test_every_parameter_takes_part(self) -> None:
        settings = SETTINGS["learned positions"]
        architecture = translator(OMNI, ("omni", "softmax", "linear"), connect=3)
        small = extract(random_translator(settings), architecture)
        found = gradients(small, small(sources(settings), targets(settings)))
        for name, gradient in found.items():
            # A bias of all keys moves every logit of a query alike.
            assert gradient is not None and (gradient.abs().sum() > 0 or name.endswith("key.bias"))


OWN: tuple[tuple[AttentionKind, ...], ...] = (
    *(("softmax",), ("linear",), ("omni",), OMNI),
    ("omni", "softmax", "omni"),
)


# Every pair of settings, kinds of self-attention and kind of attention to the source.
@pytest.mark.parametrize(
    ("settings", "own", "cross"),
    [
        pytest.param(settings, own, OMNI[(i + j) % 3], id=f"{name}-{own}-{OMNI[(i + j) % 3]}")
        for i, (name, settings) in enumerate(SETTINGS.items())
        for j, own in enumerate(OWN)
    ],
)
class TestDecoding:
    def test_translation_step_by_step(
        self, settings: ModelSettings, own: tuple[AttentionKind, ...], cross: AttentionKind
    ) -> None:
        model, target = random_translator(settings), targets(settings)
        architecture = translator(own, (cross,) * len(own))
        parallel = model(sources(settings), target, architecture)
        state = model.start(sources(settings), architecture)
        for n in range(target.shape[1]):
            logits, state = model.step(target[:, n : n + 1], state)
            torch.testing.assert_close(logits[:, 0], parallel[:, n], rtol=0, atol=1e-9)

    def test_the_future_and_padding_of_the_source_do_not_matter(
        self, settings: ModelSettings, own: tuple[AttentionKind, ...], cross: AttentionKind
    ) -> None:
        model, source, target = random_translator(settings), sources(settings), targets(settings)
        architecture = translator(own, (cross,) * len(own))
        expected = model(source, target, architecture)
        changed = target.clone()
        changed[:, 6:] = changed[:, 6:] % 7 + 1
        found = model(source[1:, :9], changed[1:, :10], architecture)
        torch.testing.assert_close(found[:, :6], expected[1:, :6], rtol=0, atol=1e-9)
        assert (found[:, 6:] - expected[1:, 6:10]).abs().max() > 1e-6
        other = source.clone()
        other[:, 2] = other[:, 2] % 7 + 1
        assert (model(other, target, architecture) - expected).abs().max() > 1e-6


@pytest.mark.parametrize("sizes", [[1] * 13, [6, 1, 1, 5], [12, 1]], ids=str)
@each_setting
def test_language_model_in_pieces(settings: ModelSettings, sizes: list[int]) -> None:
    model, text = random_writer(settings), sources(settings)[:, :13]
    for architecture in (writer("softmax", "linear", "omni"), writer("omni", "omni", "linear")):
        parallel, state = model(text, architecture), model.start(architecture)
        pieces = []
        for piece in text.split(sizes, dim=1):
            logits, state = model.step(piece, state)
            pieces.append(logits)
        torch.testing.assert_close(torch.cat(pieces, 1), parallel, rtol=0, atol=1e-9)


class TestState:
    def test_beams_share_their_source(self) -> None:
        """Rows of one sentence read one memory; reordering moves self-attention only."""
        model, source = random_translator(TEXT), sources(TEXT)
        architecture = translator(OMNI, ("softmax", "omni", "linear"))
        text = targets(TEXT).clamp(min=1).repeat_interleave(2, dim=0)
        text[1::2] = text[1::2] % 7 + 1
        first, state = model.step(text[:, :3], model.start(source, architecture))
        whole = model(source.repeat_interleave(2, dim=0), text[:, :3], architecture)
        torch.testing.assert_close(first, whole, rtol=0, atol=1e-9)
        for n in (3, 4):
            _, state = model.step(text[:, n : n + 1], state)
        rows = torch.tensor([1, 1, 3, 2, 5, 4])
        logits, _ = model.step(text[rows, 5:6], state.reorder(rows))
        every = source.repeat_interleave(2, dim=0)[rows]
        expected = model(every, text[rows, :6], architecture)[:, 5]
        torch.testing.assert_close(logits[:, 0], expected, rtol=0, atol=1e-9)

    def test_sources_can_be_left_out(self) -> None:
        model, source, text = random_translator(TEXT), sources(TEXT), targets(TEXT)
        architecture = translator()
        _, state = model.step(text[:, :3], model.start(source, architecture))
        keep = torch.tensor([0, 2])
        logits, _ = model.step(text[keep, 3:4], state.reorder(keep).keep_sources(keep))
        expected = model(source[keep], text[keep, :4], architecture)[:, 3]
        torch.testing.assert_close(logits[:, 0], expected, rtol=0, atol=1e-9)

    def test_before_the_first_token_there_is_nothing_to_reorder(self) -> None:
        state = random_writer(TEXT).start(writer("linear"))
        assert state.reorder(torch.tensor([0])) is state

    def test_stand_alone_networks_decode_too(self) -> None:
        architecture = translator()
        small = extract(random_translator(TEXT), architecture)
        logits, state = small.step(targets(TEXT)[:, :1], small.start(sources(TEXT)))
        assert logits.shape == (3, 1, 9) and state.position == 1
        alone = extract(random_writer(TEXT), writer("linear"))
        assert alone.step(sources(TEXT)[:, :2], alone.start())[1].position == 2


class TestConnection:
    def test_the_last_k_layers_are_seen(self) -> None:
        """With k = 1 a change of the layer before the last shows only through the last."""
        model, source, text = random_translator(TEXT), sources(TEXT), targets(TEXT)
        kinds = ("softmax",), ("softmax",)
        one = model(source, text, translator(*kinds, connect=1))
        two = model(source, text, translator(*kinds, connect=2))
        assert (one - two).abs().max() > 1e-6

    def test_joined_outputs_are_those_of_the_layers(self) -> None:
        model, source = random_translator(replace(TEXT, omni_span=1)), sources(TEXT)
        stack = translator().encoder
        assert stack is not None
        x = model.encoder_positions(model.tables[0](source, 16))
        three = model.encoder.last_outputs(x, stack, source != 0, 3)
        shorter = replace(stack, layers=stack.layers[:2])
        for found, encoder in ((three[2], stack), (three[1], shorter)):
            expected = model.encoder(x, encoder, source != 0)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)

    def test_every_layer_has_its_own_k(self) -> None:
        model, source = random_translator(TEXT), sources(TEXT)
        stack = translator(("softmax",) * 2, ("softmax",) * 2).decoder
        assert stack is not None
        stack = replace(stack, layers=(replace(stack.layers[0], ende_connect=1), stack.layers[1]))
        first, last = torch.randn(2, 3, 14, 16, dtype=torch.float64).unbind()
        found = model.decoder.memories([first, last], stack, source != 0)
        only = model.decoder.memories([last, last], stack, source != 0)
        assert found[0] is not None and found[1] is not None and only[0] is not None
        assert found[0][0].shape[2] == 14 and found[1][0].shape[2] == 28
        assert torch.equal(found[0][0], only[0][0])
        assert not torch.equal(found[1][0], only[1][0])  # type: ignore[index]


class TestEmbeddings:
    def test_tables_are_shared_or_separate(self) -> None:
        shared = random_translator(SETTINGS["shared table"])
        assert [tuple(t.weight.shape) for t in shared.tables] == [(11, 16)]
        separate = random_translator(TEXT)
        assert [tuple(t.weight.shape) for t in separate.tables] == [(11, 16), (9, 12)]

    def test_scale_is_that_of_the_width_in_use(self) -> None:
        model = random_writer(replace(TEXT, positions="none"))
        for width in (8, 16):
            x = torch.ones(1, 2, width, dtype=torch.float64)
            assert float(model.decoder_positions(x)[0, 0, 0]) == pytest.approx(width**0.5)

    def test_new_networks_write_with_a_spread_of_about_one(self) -> None:
        torch.manual_seed(0)
        settings = ModelSettings(TokenInput(500), max_length=32, head_dim=32)
        model = StandAlone(LanguageModel, settings, writer("softmax", "linear", embed_dim=256))
        logits = model(torch.arange(32)[None])
        assert 0.5 < float(logits.detach().std()) < 2.0

    def test_positions_count_on_while_decoding(self) -> None:
        model = random_writer(replace(TEXT, positions="learned"))
        x = torch.zeros(1, 5, 8, dtype=torch.float64)
        assert torch.equal(model.decoder_positions(x)[:, 3:], model.decoder_positions(x[:, 3:], 3))


class TestRefusals:
    @pytest.mark.parametrize("settings", [TEXT, SETTINGS["learned positions"]])
    def test_texts_beyond_the_model(self, settings: ModelSettings) -> None:
        model, long = random_writer(settings), torch.ones(1, 19, dtype=torch.long)
        with pytest.raises(UsageError, match=r"19 tokens.*max_length is 18"):
            model(long, writer("softmax"))
        _, state = model.step(long[:, :18], model.start(writer("softmax")))
        with pytest.raises(UsageError, match=r"19 tokens.*max_length is 18"):
            model.step(long[:, :1], state)

    def test_linformer_in_a_decoder(self) -> None:
        settings = replace(TEXT, omni_kernel="linformer")
        with pytest.raises(UsageError, match="linformer"):
            build_supernet(translation_space(settings))
        with pytest.raises(UsageError, match="linformer"):
            build_supernet(language_space(settings))
        StandAlone(TranslationModel, settings, translator())  # omni in the encoder only


def test_bf16_autocast_trains() -> None:
    model = build_supernet(translation_space(TEXT), dropout=0.1)
    architecture = translator(OMNI, ("omni", "softmax", "linear"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits: Tensor = model(sources(TEXT), targets(TEXT), architecture)
    logits.float().square().mean().backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    assert found and all(bool(torch.isfinite(g).all()) for g in found)
