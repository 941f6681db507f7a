"""Arithmetic of a training against what torch keeps, at a thousandth of the size."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from nas.console.app import app
from nas.run.training_memory import supernet_text
from search_spaces.architecture import Architecture
from search_spaces.costs import flops, params
from search_spaces.loading import dump_space, load_space, parse_space
from search_spaces.space import SearchSpace
from search_spaces.variation import enumerate_all, largest, smallest
from supernet.building import build_supernet, supernet_params
from supernet.decoder import ElasticDecoder
from supernet.sequence_models import LanguageModel
from supernet.training.parallel import Group
from supernet.training.sampling import build_sampler
from supernet.training_costs import (
    A100_OPS,
    activation_bytes,
    batch_positions,
    logit_bytes,
    training_costs,
)
from supernet.training_settings import Sampling, TrainingSettings, planned_updates

ROWS, LENGTH, VOCAB = 4, 256, 1024
SETTINGS = TrainingSettings(
    max_tokens=ROWS * LENGTH,
    segment_length=LENGTH,
    max_updates=100,
    sampling="uniform",
    num_random=1,
)


@dataclass(frozen=True)
class Positions:
    """So many rows of one position."""

    rows: int

    def __len__(self) -> int:
        return self.rows

    @property
    def num_labels(self) -> int:
        return self.rows

    def part(self, rows: slice) -> Positions:
        return Positions(len(range(self.rows)[rows]))


def small(*kinds: str) -> SearchSpace:
    """`lm-small` with a thousandth of its parameters, of these kinds of attention, or linear."""
    text = dump_space(load_space("lm-small"))
    for old, new in (
        ("max_length = 4096", f"max_length = {LENGTH}"),
        ("vocab_size = 32768", f"vocab_size = {VOCAB}"),
        ("window = 512", "window = 32"),
        ("head_dim = 64", "head_dim = 32"),
        ("source = 4096", f"source = {LENGTH}"),
    ):
        assert old in text
        text = text.replace(old, new)
    head, _ = text.split("[decoder]")
    genes = {
        "embed_dim": [48, 64],
        "num_layers": [2, 3],
        "self_attention": kinds or ("linear",),
        "self_num_heads": [2],
        "self_num_kv_heads": [1],
        "ffn_dim": [96, 160],
    }
    lines = "\n".join(f"{name} = {json.dumps(values)}" for name, values in genes.items())
    return parse_space(f"{head}[decoder]\n{lines}\n", "small")


def largest_of(space: SearchSpace) -> Architecture:
    return space.decode(largest(space))[0]


def kept_bytes(space: SearchSpace, recompute: bool) -> int:
    """What torch keeps of the layers for the gradients, in fp32, weights left out."""
    model = build_supernet(space).train()
    assert isinstance(model, LanguageModel)
    for part in model.modules():
        if isinstance(part, ElasticDecoder):
            part.checkpoints = recompute
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    tokens = torch.randint(1, VOCAB, (ROWS, LENGTH))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = model.read(tokens, largest_of(space))
    assert states.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize(
    "kind",
    [
        "softmax",
        "window",
        "linear",
        "linear:hedgehog",
        "linear:decay",
        "linear:decay_channel",
        "skip",
    ],
)
def test_activations_are_those_that_torch_keeps(kind: str) -> None:
    space = small(kind)
    told = activation_bytes(space, largest_of(space), SETTINGS, autocast=False) * ROWS * LENGTH
    assert told == pytest.approx(kept_bytes(space, recompute=False), rel=0.2)


def test_recomputing_keeps_the_inputs_of_layers() -> None:
    space = small()
    settings = replace(SETTINGS, recompute=True)
    told = activation_bytes(space, largest_of(space), settings, autocast=False) * ROWS * LENGTH
    whole = activation_bytes(space, largest_of(space), SETTINGS, autocast=False) * ROWS * LENGTH
    inputs = kept_bytes(space, recompute=True)
    layers = len(largest_of(space).decoder.layers)  # type: ignore[union-attr]
    assert told == pytest.approx(inputs + whole / layers, rel=0.2)


def test_weights_and_moments_are_counted_to_the_byte() -> None:
    space = small()
    model = build_supernet(space)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moments = sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if value.dim()
    )
    sizes = [p.nbytes for p in model.parameters()]
    params = supernet_params(space)
    exact = replace(SETTINGS, bfloat16=False)
    costs = training_costs(space, params, exact)
    assert params == sum(p.numel() for p in model.parameters())
    assert costs.weight_bytes == 2 * sum(sizes) + moments
    averaged = training_costs(space, params, replace(exact, ema_decay=0.9))
    assert averaged.weight_bytes == costs.weight_bytes + sum(sizes)


def test_operations_are_those_that_torch_counts() -> None:
    space = small("softmax")
    model = build_supernet(space)
    tokens = torch.randint(1, VOCAB, (ROWS, LENGTH))
    # The fused kernel for CPUs is not counted.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens, largest_of(space)).sum().backward()
    costs = training_costs(space, supernet_params(space), SETTINGS)
    assert costs.operations == pytest.approx(counter.get_total_flops(), rel=0.1)


def test_logits_are_three_copies_of_the_scores() -> None:
    space = small()
    scores = ROWS * LENGTH * VOCAB * 4
    assert logit_bytes(space, SETTINGS, ROWS * LENGTH, autocast=False) == 3 * scores
    chunked = replace(SETTINGS, loss_chunk=LENGTH)
    assert logit_bytes(space, chunked, ROWS * LENGTH, autocast=False) == 3 * scores / ROWS


def test_a_teachers_scores_are_as_many_again() -> None:
    space = small()
    scores = ROWS * LENGTH * VOCAB * 4
    assert logit_bytes(space, SETTINGS, ROWS * LENGTH, autocast=False, taught=True) == 6 * scores


@pytest.mark.parametrize("bfloat16", [None, True, False])
def test_the_settings_say_in_which_precision_products_are(bfloat16: bool | None) -> None:
    space, settings = small(), replace(SETTINGS, bfloat16=bfloat16)
    found, low = training_costs(space, 10**6, settings), bfloat16 is not False
    each = activation_bytes(space, largest_of(space), settings, autocast=low)
    assert found.activation_bytes == each * ROWS * LENGTH
    assert found.logit_bytes == logit_bytes(space, settings, ROWS * LENGTH, autocast=low)
    assert found.weight_bytes == (18 if low else 16) * 10**6


@pytest.mark.parametrize("alone", [False, True])
def test_a_teacher_lies_beside_what_it_teaches(alone: bool) -> None:
    space, settings = small(), replace(SETTINGS, distillation=0.9)
    network = largest_of(space) if alone else None
    plain = training_costs(space, 10**6, SETTINGS, network=network)
    (least,) = space.decode(smallest(space))
    taught = training_costs(space, 10**6, settings, network=network, teacher=least)
    count = params(space.model, space.task, least)
    assert taught.weight_bytes == plain.weight_bytes + 4 * count
    rows = ROWS * LENGTH
    assert taught.logit_bytes == logit_bytes(space, settings, rows, autocast=True, taught=True)
    read = flops(space.model, space.task, least, "true", LENGTH) / LENGTH * rows
    assert taught.operations == pytest.approx(plain.operations + read)
    ignored = training_costs(space, 10**6, SETTINGS, network=network, teacher=least)
    assert ignored == plain and training_costs(space, 10**6, settings, network=network) == plain


def test_a_sandwich_teaches_itself_with_no_weights_of_others() -> None:
    space, plain = small(), replace(SETTINGS, sampling="sandwich")
    costs, taught = (
        training_costs(space, 10**6, one) for one in (plain, replace(plain, distillation=0.5))
    )
    assert taught.logit_bytes > costs.logit_bytes
    assert replace(taught, logit_bytes=costs.logit_bytes) == costs
    alone = training_costs(
        space, 10**6, replace(plain, distillation=0.5), network=largest_of(space)
    )
    assert alone.logit_bytes == costs.logit_bytes


def test_gpus_share_the_tokens_and_not_the_weights() -> None:
    space = small()
    one, four = (training_costs(space, 10**6, SETTINGS, gpus) for gpus in (1, 4))
    assert four.weight_bytes == one.weight_bytes
    assert four.activation_bytes == one.activation_bytes / 4
    assert four.hours(4) == pytest.approx(one.hours() / 4)
    assert one.hours(ops=A100_OPS, used=1.0) * 3600 * A100_OPS == pytest.approx(
        100 * one.operations
    )


@pytest.mark.parametrize(("accumulate", "gpus"), [(4, 4), (5, 4), (8, 2), (1, 4), (2, 4)])
def test_a_gpu_holds_the_largest_of_its_shares(accumulate: int, gpus: int) -> None:
    """As `Group.shares` deals the batches of an update out."""
    space, settings = small(), replace(SETTINGS, accumulate=accumulate)
    group = Group()
    group.size = gpus
    batch = Positions(ROWS * LENGTH)
    rows = max(len(share.batch) for share in group.shares([batch] * accumulate))
    costs = training_costs(space, 10**6, settings, gpus)
    each = activation_bytes(space, largest_of(space), settings, autocast=True)
    assert costs.activation_bytes == each * rows
    assert costs.logit_bytes == logit_bytes(space, settings, rows, autocast=True)


@pytest.mark.parametrize("name", ["lm-small", "vit-small"])
@pytest.mark.parametrize(("preset", "gpus"), [("quick", 1), ("standard", 8), ("paper", 8)])
def test_shipped_presets_fit_into_an_a100(name: str, preset: str, gpus: int) -> None:
    args = ["space", "estimate", name, "--preset", preset, "--gpus", str(gpus), "--json"]
    told = json.loads(CliRunner().invoke(app, args).stdout)
    assert 5 < told["memory_gb"] * 1.1 < 80
    assert 0.1 < told["hours"] < (24 if preset != "paper" else 24 * 7)


def test_positions_of_a_batch() -> None:
    assert batch_positions(small(), SETTINGS) == (ROWS * LENGTH, LENGTH)
    images = replace(SETTINGS, batch_size=2)
    assert batch_positions(load_space("vit-small"), images) == (2 * 197, 197)


def test_a_network_alone_needs_its_own_memory() -> None:
    space = small()
    (least,) = space.decode(smallest(space))
    every = training_costs(space, 10**6, SETTINGS)
    big, little = (
        training_costs(space, 10**6, SETTINGS, network=one) for one in (largest_of(space), least)
    )
    assert big.memory_bytes == every.memory_bytes > little.memory_bytes
    sandwich = replace(SETTINGS, sampling="sandwich", num_random=2)
    trained = training_costs(space, 10**6, sandwich)
    assert trained.operations == 4 * big.operations > 4 * little.operations
    alone = training_costs(space, 10**6, sandwich, network=largest_of(space))
    assert alone.operations == big.operations


def test_a_network_alone_keeps_what_its_own_kinds_keep() -> None:
    space = small("softmax", "linear")
    softmax, linear = (
        training_costs(space, 10**6, SETTINGS, network=largest_of(small(kind)))
        for kind in ("softmax", "linear")
    )
    every = training_costs(space, 10**6, SETTINGS)
    assert softmax.activation_bytes < linear.activation_bytes == every.activation_bytes


@pytest.mark.parametrize("recompute", [False, True])
def test_layers_that_look_at_several_outputs_are_counted(recompute: bool) -> None:
    """As in the network that needs most of all."""
    few, space = small("softmax", "linear"), small("softmax", "linear", "omni")
    settings = replace(SETTINGS, recompute=recompute)
    every = training_costs(space, 10**6, settings)
    alone = [
        training_costs(space, 10**6, settings, network=network)
        for network in space.decode(enumerate_all(space))
    ]
    assert every.activation_bytes == max(one.activation_bytes for one in alone)
    assert every.operations == max(one.operations for one in alone)
    without = training_costs(few, 10**6, settings)
    assert every.activation_bytes > 1.1 * without.activation_bytes
    assert every.operations > 1.1 * without.operations


def test_a_class_token_is_one_of_the_positions() -> None:
    text = dump_space(load_space("listops"))
    assert "class_token = false" in text
    plain, marked = (
        parse_space(text.replace("class_token = false", f"class_token = {value}"), "texts")
        for value in ("false", "true")
    )
    assert batch_positions(marked, SETTINGS) == batch_positions(plain, SETTINGS)
    found, like = (training_costs(space, 10**6, SETTINGS) for space in (marked, plain))
    assert found == like


@pytest.mark.parametrize("sampling", ["uniform", "sandwich", "fair"])
def test_as_many_networks_are_counted_as_an_update_trains(sampling: Sampling) -> None:
    space, settings = small(), replace(SETTINGS, sampling=sampling, num_random=3)
    networks = build_sampler(space, settings, 0).draw()
    alone = training_costs(space, 10**6, settings, network=largest_of(space))
    assert training_costs(space, 10**6, settings).operations == len(networks) * alone.operations


@pytest.mark.parametrize(
    ("max_updates", "epoch_updates", "updates"), [(100, 4, 8), (5, 4, 5), (5, 0, 5), (0, 4, 8)]
)
def test_whichever_end_comes_first(max_updates: int, epoch_updates: int, updates: int) -> None:
    settings = replace(SETTINGS, max_updates=max_updates, epochs=2, epoch_updates=epoch_updates)
    assert training_costs(small(), 10**6, settings).updates == updates
    assert planned_updates(settings, 10**6) == updates


def test_a_search_on_a_gpu_is_told_before_it_starts() -> None:
    told = supernet_text(small(), SETTINGS)
    assert "needs about 0." in told and "hours of one A100" in told
    assert "hours" not in supernet_text(load_space("digits"), TrainingSettings())
