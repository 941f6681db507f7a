"""The study of an update's operations: its numbers hold, and it counts what it says it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException

from experiments.update_operations import (
    MOST,
    GpuOperations,
    counted,
    drawn,
    met,
    pretended_gpu,
    show,
)
from nas.request.presets import budget_for
from search_spaces.loading import load_space
from supernet.attention import softmax
from tests.support.study_cases import printed

SPACE = load_space("wmt14")
SETTINGS = budget_for(SPACE, "standard", {}).supernet
REACHED = 994  # operations, with these networks


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    groups = {
        name: counted(SPACE, SETTINGS, some) for name, some in drawn(SPACE, 1, seed=0).items()
    }
    return {"space": "wmt14", "preset": "standard", "networks": groups}


def test_an_update_of_wmt14_asks_for_no_more_than_it_did(numbers: dict[str, Any]) -> None:
    for group in numbers["networks"].values():
        assert all(one["operations"] <= REACHED and one["waits"] == 1 for one in group)
    text = printed(show(numbers))
    assert "as drawn" in text and "addmm" in text and "native_dropout" in text


def test_the_marks(numbers: dict[str, Any]) -> None:
    known = numbers["networks"]["largest"][0]
    for count, waits, kept in ((1000, 1, True), (1001, 1, False), (1000, 2, False)):
        one = known | {"operations": count, "waits": waits}
        assert met(numbers | {"networks": {"largest": [one]}}) is kept


def test_each_dropout_is_an_operation_and_its_gradient_another(numbers: dict[str, Any]) -> None:
    network = drawn(SPACE, 1, seed=0)["largest"][:1]
    assert SETTINGS.dropout == 0.1
    (with_dropout,) = numbers["networks"]["largest"]
    (without,) = counted(SPACE, replace(SETTINGS, dropout=0.0), network)
    # Of six encoder layers two each, of six decoder layers three, and of both embeddings. Those of
    # the 12 feed-forwards have no gradient of their own: it is that of ReLU.
    more = with_dropout["operations"] - without["operations"]
    assert more == 2 * (6 * 2 + 6 * 3 + 2) + 12


@pytest.mark.parametrize("kind", ["softmax", "linear", "omni"])
def test_no_kind_of_attention_alone_is_above_the_mark(kind: str) -> None:
    """Of all layers, the largest sizes, and the most layers that are looked at across."""
    (network,) = drawn(SPACE, 1, seed=0)["largest"]
    assert network.encoder is not None and network.decoder is not None
    encoder = [replace(layer, attention=kind) for layer in network.encoder.layers]
    decoder = [
        replace(layer, self_attention=kind, cross_attention=kind, ende_connect=3)
        for layer in network.decoder.layers
    ]
    alone = replace(
        network,
        encoder=replace(network.encoder, layers=tuple(encoder)),
        decoder=replace(network.decoder, layers=tuple(decoder)),
    )
    assert counted(SPACE, SETTINGS, [alone])[0]["operations"] <= MOST


def operations(work: Any) -> Counter[str]:
    """What is counted of some work on a pretended GPU that is given a matrix with a gradient."""
    with pretended_gpu():
        x = torch.ones(4, 4, requires_grad=True)
        with GpuOperations() as found:
            work(x)
    return found.forward + found.backward + Counter(apart=found.apart)


def test_views_and_allocations_are_free() -> None:
    assert operations(lambda x: x.T[1:].unflatten(0, (3, 1)).detach()) == {}
    assert operations(lambda x: torch.empty_like(x)) == {}


def test_casts_attention_and_gradients_are_counted() -> None:
    def work(x: Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            F.linear(x, x.detach()).float().sum().backward()

    found = operations(work)
    assert found["mm"] == 2 and found["_to_copy"] >= 4
    heads = operations(lambda x: softmax.fused_attention(*[x.view(1, 1, 4, 4)] * 3))
    assert heads == {"_scaled_dot_product_efficient_attention": 1}


def test_lists_are_taken_apart_where_they_are_not_alike() -> None:
    def counts(change: Any, other: Any) -> int:
        def work(x: Tensor) -> None:
            change([torch.ones(3, 2), torch.ones(3, 2)], [other(), other()])

        found = operations(work)
        assert found[change.__name__] == 1
        return found["apart"]

    add, copy = torch._foreach_add_, torch._foreach_copy_
    assert counts(add, lambda: torch.ones(3, 2)) == 0
    assert counts(add, lambda: torch.ones(3, 2, dtype=torch.bfloat16)) == 1
    assert counts(copy, lambda: torch.ones(3, 2, dtype=torch.bfloat16)) == 0
    for change in (add, copy):
        assert counts(change, lambda: torch.ones(2, 3).T) == 1


def test_a_number_that_python_reads_ends_it() -> None:
    with pytest.raises(DataDependentOutputException):
        operations(lambda x: x.sum().item())
