"""Elastic = stand-alone: the cut-out network does what the supernet does, with its own weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.architecture import Architecture, AttentionKind, EncoderLayer, EncoderStack
from search_spaces.costs import params
from search_spaces.settings import ModelSettings
from search_spaces.variation import largest, smallest
from supernet.building import build_supernet
from supernet.encoder_models import EncoderClassifier
from supernet.extraction import StandAlone, extract, without_attention
from tests.support.supernet_cases import (
    IMAGES,
    SETTINGS,
    gradients,
    network,
    random_inputs,
    random_networks,
    random_supernet,
    space_of,
)

each_setting = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())


def networks(settings: ModelSettings) -> list[Architecture]:
    """Random networks, both ends, and one with an omni layer of the longest span."""
    space = space_of(settings)
    ends = space.decode(np.concatenate([smallest(space), largest(space)]))
    omni = network("softmax", "linear", "omni", "omni", num_heads=4)
    return [*ends, omni, *random_networks(space, 5)]


@each_setting
def test_outputs_and_gradients_are_the_supernets(settings: ModelSettings) -> None:
    supernet, inputs = random_supernet(settings), random_inputs(settings)
    for architecture in networks(settings):
        small = extract(supernet, architecture)
        elastic, alone = supernet(inputs, architecture), small(inputs)
        torch.testing.assert_close(elastic, alone, rtol=0, atol=1e-10)
        check_gradients(gradients(supernet, elastic), gradients(small.network, alone))


def check_gradients(large: dict[str, Tensor | None], small: dict[str, Tensor | None]) -> None:
    """The small network's gradients in the leading corners; zero or none everywhere else."""
    assert set(small) <= set(large)
    for name, found in large.items():
        wanted = small.get(name)
        if wanted is None:
            assert found is None, name
            continue
        assert found is not None, name
        padded = torch.zeros_like(found)
        padded[tuple(slice(0, n) for n in wanted.shape)] = wanted
        torch.testing.assert_close(found, padded, rtol=1e-10, atol=1e-10, msg=name)


@each_setting
def test_it_holds_exactly_the_parameters_of_the_architecture(settings: ModelSettings) -> None:
    supernet = random_supernet(settings)
    for architecture in networks(settings):
        small = extract(supernet, architecture)
        held = sum(parameter.numel() for parameter in small.parameters())
        assert held == params(settings, "classification", architecture)
        assert sum(t.numel() for t in small.state_dict().values()) == held


@each_setting
def test_every_parameter_takes_part(settings: ModelSettings) -> None:
    architecture = network("linear", "omni", "softmax", "omni")
    small = extract(random_supernet(settings), architecture)
    for name, gradient in gradients(small, small(random_inputs(settings))).items():
        # A bias of all keys moves every logit of a query alike, and a softmax does not see that.
        assert gradient is not None and (gradient.abs().sum() > 0 or name.endswith("key.bias"))


@each_setting
def test_the_supernet_holds_nothing_beyond_its_networks(settings: ModelSettings) -> None:
    """Every size of every parameter is some network's: for omni layers the first omni layer's."""
    stacks: list[list[AttentionKind]] = [["softmax"] * 4, ["linear"] * 4]
    stacks += [[*["softmax"] * below, "omni"] for below in range(4)]
    reached: dict[str, list[int]] = {}
    for kinds in stacks:
        layers = tuple(EncoderLayer(kind, 4, 16) for kind in kinds)
        alone = StandAlone(EncoderClassifier, settings, Architecture(EncoderStack(16, layers)))
        for name, parameter in alone.network.named_parameters():
            before = reached.get(name, [0] * parameter.ndim)
            reached[name] = [max(pair) for pair in zip(before, parameter.shape, strict=True)]
    supernet = build_supernet(space_of(settings))
    assert reached == {name: list(p.shape) for name, p in supernet.named_parameters()}


def test_other_architectures_give_other_outputs() -> None:
    supernet, inputs = random_supernet(IMAGES), random_inputs(IMAGES)
    outputs = [supernet(inputs, one) for one in random_networks(space_of(IMAGES), 6)]
    for number, mine in enumerate(outputs):
        assert not any(torch.allclose(mine, other) for other in outputs[:number])


def test_weights_of_the_kinds_are_shared_or_separate() -> None:
    for name, same in (("images", True), ("separate weights", False)):
        supernet = random_supernet(SETTINGS[name])
        queries = [extract(supernet, network(kind)).state_dict() for kind in ("softmax", "linear")]
        first, second = (
            next(value for key, value in state.items() if key.endswith("query.weight"))
            for state in queries
        )
        assert torch.equal(first, second) is same


def test_slices_are_views_of_the_supernets_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    supernet, seen = random_supernet(IMAGES), list[Tensor]()
    watch(monkeypatch, seen)
    supernet(random_inputs(IMAGES), network("softmax", "linear", "omni", embed_dim=8))
    storages = {p.untyped_storage().data_ptr() for p in supernet.parameters()}
    assert len(seen) > 30
    assert {t.untyped_storage().data_ptr() for t in seen} <= storages
    assert any(t.numel() * t.element_size() < t.untyped_storage().nbytes() for t in seen)


def watch(monkeypatch: pytest.MonkeyPatch, seen: list[Tensor]) -> None:
    """Note the weights and biases that torch's layer functions are given."""
    for name in ("linear", "layer_norm", "conv2d"):
        original = getattr(F, name)

        def spy(x: Tensor, *args: Any, original: Any = original) -> Tensor:
            seen.extend(arg for arg in args if isinstance(arg, Tensor))
            result: Tensor = original(x, *args)
            return result

        monkeypatch.setattr(F, name, spy)


def test_the_cut_is_a_copy() -> None:
    supernet, inputs, architecture = random_supernet(IMAGES), random_inputs(IMAGES), network("omni")
    before = supernet(inputs, architecture)
    small = extract(supernet, architecture)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.zero_()
    assert torch.equal(supernet(inputs, architecture), before)
    assert not torch.equal(small(inputs), before)


@pytest.mark.parametrize("training", [True, False])
def test_mode_and_precision_stay(training: bool) -> None:
    small = extract(random_supernet(IMAGES).train(training), network("softmax"))
    assert {module.training for module in small.modules()} == {training}
    assert {parameter.dtype for parameter in small.parameters()} == {torch.float64}


def test_cutting_draws_no_random_numbers() -> None:
    supernet = random_supernet(IMAGES)
    before = torch.random.get_rng_state()
    extract(supernet, network("softmax", "omni"))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    "architecture",
    [
        network("softmax", embed_dim=20),
        network("softmax", num_heads=8),
        network("softmax", "softmax", "softmax", "softmax", "softmax"),
    ],
    ids=["too wide", "too many heads", "too deep"],
)
def test_networks_beyond_the_supernet_are_refused(architecture: Architecture) -> None:
    supernet: EncoderClassifier = build_supernet(space_of(IMAGES)).double()
    with pytest.raises((RuntimeError, KeyError, AssertionError, ValueError)):
        extract(supernet, architecture)
    with pytest.raises((RuntimeError, KeyError, AssertionError, ValueError)):
        supernet(random_inputs(IMAGES), architecture)


@each_setting
def test_skip_is_attention_that_adds_nothing(settings: ModelSettings) -> None:
    supernet, inputs = random_supernet(settings), random_inputs(settings)
    silent = without_attention(supernet, network("linear", "softmax"), "encoder", 1, "attention")
    torch.testing.assert_close(supernet(inputs, network("linear", "skip")), silent(inputs))
    alone = extract(supernet, network("linear", "skip"))
    names = {name for name, _ in alone.named_parameters() if ".blocks.1.attention" in name}
    norms = {"network.encoder.blocks.1.attention_norm." + end for end in ("weight", "bias")}
    assert names == (norms if settings.norm == "post" else set())
