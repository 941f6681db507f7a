"""Whole classifiers: against a plain network of torch's layers, pooling, padding, modes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from experiments.plain_networks import PlainNetwork, plain_twin
from search_spaces.architecture import AttentionKind
from search_spaces.errors import UsageError
from search_spaces.loading import load_space
from search_spaces.settings import ModelSettings, TokenInput
from search_spaces.variation import largest
from supernet.building import build_supernet
from supernet.encoder_models import EncoderClassifier
from supernet.extraction import StandAlone
from tests.support.supernet_cases import (
    IMAGES,
    KINDS,
    SETTINGS,
    TOKENS,
    gradients,
    network,
    random_inputs,
    random_networks,
    random_supernet,
    randomised,
    space_of,
)

ORDINARY: tuple[AttentionKind, ...] = ("softmax", "linear")
TOKEN_SETTINGS = {k: v for k, v in SETTINGS.items() if isinstance(v.input, TokenInput)}
each_setting = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
each_token_setting = pytest.mark.parametrize(
    "settings", TOKEN_SETTINGS.values(), ids=TOKEN_SETTINGS.keys()
)


@each_setting
def test_a_plain_network_computes_the_same(settings: ModelSettings) -> None:
    supernet, inputs = random_supernet(settings), random_inputs(settings)
    for architecture in random_networks(space_of(settings, ORDINARY), 4):
        plain = plain_twin(supernet, architecture)
        alone = randomised(StandAlone(EncoderClassifier, settings, architecture))
        alone.load_state_dict(
            dict(zip(alone.state_dict(), plain.state_dict().values(), strict=True))
        )
        torch.testing.assert_close(
            supernet(inputs, architecture), plain(inputs), rtol=0, atol=1e-10
        )
        wanted = gradients(plain, plain(inputs)).values()
        for found, expected in zip(gradients(alone, alone(inputs)).values(), wanted, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_plain_network_of_other_weights_does_not() -> None:
    supernet, inputs, architecture = (
        random_supernet(IMAGES),
        random_inputs(IMAGES),
        network("linear"),
    )
    plain = plain_twin(supernet, architecture)
    randomised(plain, seed=1)
    assert not torch.allclose(supernet(inputs, architecture), plain(inputs))


@pytest.mark.parametrize("name", ["digits", "cifar10", "listops"])
def test_supernets_of_the_shipped_spaces_have_the_largest_networks_shape(name: str) -> None:
    space = load_space(name)
    architecture = space.decode(largest(space))[0]
    with torch.device("meta"):
        supernet, plain = build_supernet(space), PlainNetwork(space.model, architecture)
    sizes = [tuple(p.shape) for p in supernet.parameters()]
    assert sizes == [tuple(p.shape) for p in plain.parameters()]


@each_token_setting
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(settings: ModelSettings, kind: AttentionKind) -> None:
    supernet, tokens = random_supernet(settings), random_inputs(settings)
    architecture = network("softmax", kind, kind)
    for row in tokens:
        short = row[row != 0][None]
        padded = torch.cat((short, short.new_zeros(1, 17 - short.shape[1])), dim=1)
        alone, with_padding = supernet(short, architecture), supernet(padded, architecture)
        torch.testing.assert_close(with_padding, alone, rtol=0, atol=1e-10)


@each_token_setting
def test_what_stands_at_padding_gets_no_gradient(settings: ModelSettings) -> None:
    supernet, tokens = random_supernet(settings), random_inputs(settings)
    found = gradients(supernet, supernet(tokens, network("softmax", "linear", "omni")))
    table = found["embedding.tokens.weight"]
    assert table is not None and not table[0].any() and table[1:].abs().sum() > 0


@each_setting
def test_examples_of_a_batch_do_not_see_each_other(settings: ModelSettings) -> None:
    supernet, inputs = random_supernet(settings), random_inputs(settings)
    architecture = network("softmax", "linear", "omni")
    together = supernet(inputs, architecture)
    alone = torch.cat([supernet(one[None], architecture) for one in inputs])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("class_token", [True, False])
def test_a_row_of_padding_alone_is_finite(class_token: bool) -> None:
    settings = replace(TOKENS, class_token=class_token)
    supernet, tokens = random_supernet(settings), random_inputs(settings)
    tokens[1] = 0
    logits = supernet(tokens, network("softmax", "linear", "omni"))
    assert logits.isfinite().all()
    assert all(g is None or g.isfinite().all() for g in gradients(supernet, logits).values())


def test_pooling_reads_the_class_token_or_the_mean_of_the_others() -> None:
    x = torch.arange(24.0).view(2, 4, 3)
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    token = random_supernet(SETTINGS["class token read"])
    mean = random_supernet(SETTINGS["class token, mean"])
    plain = random_supernet(IMAGES)
    assert torch.equal(token._pool(x, None), x[:, 0])
    assert torch.equal(mean._pool(x, None), x[:, 1:].mean(dim=1))
    assert torch.equal(plain._pool(x, None), x.mean(dim=1))
    assert torch.equal(mean._pool(x, mask), torch.stack((x[0, 1:3].mean(0), x[1, 1])))
    assert torch.equal(plain._pool(x, mask), torch.stack((x[0, :3].mean(0), x[1, :2].mean(0))))


def swapped(images: Tensor) -> Tensor:
    """The images with their two upper quarters exchanged."""
    left, right = images[..., :4, :4], images[..., :4, 4:]
    return torch.cat((torch.cat((right, left), dim=-1), images[..., 4:, :]), dim=-2)


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal"])
def test_positions_tell_patches_apart(positions: str) -> None:
    settings = replace(IMAGES, positions=positions)  # type: ignore[arg-type]
    supernet, images = random_supernet(settings), random_inputs(IMAGES)
    architecture = network("softmax", "softmax")
    same = torch.allclose(supernet(images, architecture), supernet(swapped(images), architecture))
    assert same == (positions == "none")


def test_input_longer_than_the_model_is_refused() -> None:
    supernet = random_supernet(replace(IMAGES, max_length=15))
    with pytest.raises((RuntimeError, UsageError)):
        supernet(random_inputs(IMAGES), network("softmax"))


def test_a_network_on_its_own_remembers_its_architecture() -> None:
    architecture = network("softmax", "omni")
    alone = randomised(StandAlone(EncoderClassifier, IMAGES, architecture))
    assert isinstance(alone.network, EncoderClassifier)
    inputs = random_inputs(IMAGES)
    assert torch.equal(alone(inputs), alone.network(inputs, architecture))
    assert alone(inputs).shape == (3, 5)


def test_bfloat16_autocast_stays_near() -> None:
    supernet = random_supernet(IMAGES).float()
    inputs = random_inputs(IMAGES).float()
    for kind in KINDS:
        architecture = network(kind, kind)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = supernet(inputs, architecture).float()
        full = supernet(inputs, architecture)
        assert not torch.equal(low, full)
        assert torch.nn.functional.cosine_similarity(low, full).min() > 0.95


@pytest.mark.gpu
@each_setting
def test_cuda_computes_the_same(settings: ModelSettings) -> None:
    supernet, inputs = random_supernet(settings), random_inputs(settings)
    networks = random_networks(space_of(settings), 3)
    expected = [supernet(inputs, architecture) for architecture in networks]
    supernet.cuda()
    for architecture, wanted in zip(networks, expected, strict=True):
        found = supernet(inputs.cuda(), architecture).cpu()
        # Sines of positions are fp32 ones, and a card's are not a processor's.
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
