"""How much of its source a network looks at."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from experiments.decoder_linear import VARIANTS
from experiments.decoder_measures import attended_share, share_of
from supernet.data.text_batches import pair_batches
from supernet.extraction import StandAlone
from supernet.sequence_models import TranslationModel
from tests.support.task_cases import task_of


def test_a_mean_is_one_and_a_look_at_one_token_is_one_over_the_length() -> None:
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])[:, None, None]
    assert share_of(weights, mask).flatten().tolist() == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize("name", ["all softmax", "cosFormer: cross", "cosFormer: encoder, cross"])
def test_a_network_with_equal_keys_looks_at_everything(name: str) -> None:
    task, variant = task_of("translation"), VARIANTS[name]
    network = StandAlone(
        TranslationModel, variant.settings(task.num_outcomes), variant.architecture
    )
    for key, weight in network.named_parameters():
        if "cross_attention" in key and key.endswith("key.weight"):
            torch.nn.init.zeros_(weight)
    found = attended_share(network, pair_batches(task.valid, 512, shuffle=False))
    assert found == pytest.approx(1.0, abs=0.01)  # but for cosFormer's cosine


def test_padded_targets_do_not_count() -> None:
    task, variant = task_of("translation"), VARIANTS["all softmax"]
    network = StandAlone(
        TranslationModel, variant.settings(task.num_outcomes), variant.architecture
    )
    for key, weight in network.named_parameters():
        if "cross_attention" in key and key.endswith("key.weight"):
            weight.data.mul_(20)
    batches = pair_batches(task.valid, 512, shuffle=False)
    batch = next(batch for batch in batches if not batch.target_mask.all())
    alone = 0.0
    for row in range(len(batch)):
        inputs = batch.inputs[[row]][:, batch.target_mask[row]]
        there = torch.ones_like(inputs, dtype=torch.bool)
        one = replace(batch, source=batch.source[[row]], inputs=inputs, target_mask=there)
        alone += attended_share(network, [one]) * inputs.shape[1]
    assert attended_share(network, [batch]) == pytest.approx(alone / int(batch.target_mask.sum()))


def test_the_kernels_are_put_back() -> None:
    task, variant = task_of("translation"), VARIANTS["cosFormer: cross"]
    network = StandAlone(
        TranslationModel, variant.settings(task.num_outcomes), variant.architecture
    ).eval()
    batch = next(iter(pair_batches(task.valid, 512, shuffle=False)))
    before = network(batch.source, batch.inputs)
    attended_share(network, [batch])
    torch.testing.assert_close(network(batch.source, batch.inputs), before)
