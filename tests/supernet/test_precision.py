"""Precision and repeatability on a device; what is special to a card is shown on one, or mocked."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from supernet.attention import gated_chunks
from supernet.precision import autocast, has_bfloat16, repeatable, tf32
from supernet.training.sampling import SingleNetwork
from tests.support.training_cases import PROBES, SHORT, finished, trainer, weights


def test_a_processor_multiplies_as_it_is_asked_to() -> None:
    assert not has_bfloat16("cpu")
    assert not autocast("cpu")._enabled and autocast("cpu", True)._enabled
    before = torch.get_float32_matmul_precision()
    with tf32("cpu"), repeatable("cpu", True):
        assert torch.get_float32_matmul_precision() == before
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("capability", "wanted", "low"),
    [
        ((8, 0), None, True),
        ((9, 0), None, True),
        ((7, 5), None, False),
        ((8, 0), False, False),
    ],
)
def test_a_card_has_bfloat16_from_ampere_on(
    capability: tuple[int, int], wanted: bool | None, low: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_bfloat16("cuda:0") is (capability >= (8, 0))
    before = torch.get_float32_matmul_precision()
    with tf32("cuda", wanted):
        assert torch.get_float32_matmul_precision() == ("high" if low else before)
        assert torch.backends.cudnn.allow_tf32 is (wanted is not False)  # of convolutions
    assert torch.get_float32_matmul_precision() == before and torch.backends.cudnn.allow_tf32


def test_what_is_repeatable_on_a_card_is_left_as_it_was() -> None:
    with pytest.raises(KeyError), repeatable("cuda", True):
        assert torch.are_deterministic_algorithms_enabled()
        raise KeyError
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with repeatable("cuda", False):
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("length", [1, 2, 3, 64, 65])
def test_sums_in_a_fixed_order_are_the_sums(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated_chunks, "_adds_in_any_order", lambda x: True)
    x = torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True)
    found, wanted = gated_chunks._cumulated(x), x.cumsum(dim=1)
    torch.testing.assert_close(found, wanted)
    weight = torch.randn_like(x)
    gradients = [torch.autograd.grad((one * weight).sum(), x)[0] for one in (found, wanted)]
    torch.testing.assert_close(*gradients)


@pytest.mark.gpu
@pytest.mark.parametrize("alone", [False, True])
def test_a_repeated_training_on_a_card_ends_in_the_same_weights(alone: bool) -> None:
    settings = replace(SHORT, deterministic=True)
    sampler = SingleNetwork(PROBES[0]) if alone else None
    found = []
    for _ in range(2):
        training = trainer(settings, dropout=0.2, sampler=sampler, device="cuda")
        finished(training)
        found.append(weights(training))
    assert found[0] == found[1]
