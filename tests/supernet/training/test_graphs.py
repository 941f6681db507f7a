"""Gradients of a network that trains alone, recorded once for each shape of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from supernet.training import graphs
from supernet.training.graphs import SEEN, GraphedGradients
from supernet.training.parallel import Share
from supernet.training.sampling import SingleNetwork
from tests.support.training_cases import PROBES, SHORT, finished, trainer


@dataclass
class Rows:
    """A batch."""

    inputs: Tensor
    labels: Tensor | None = None
    num_labels: int = 1


class StandIn:
    """A graph without a card: replaying computes once more, into the losses of the first time."""

    made = 0

    def __init__(self) -> None:
        StandIn.made += 1
        self.again: Callable[[], object] = lambda: None

    def replay(self) -> None:
        """As of a graph."""
        self.again()


class Computed:
    """Adds the weighted sum of a batch to one parameter's gradient, in a buffer of its own."""

    def __init__(self) -> None:
        self.parameter = torch.zeros(2, requires_grad=True)
        self.unused = torch.zeros(2, requires_grad=True)
        self.buffer = torch.zeros(2)
        self.calls = list[Share]()
        self.graph: StandIn | None = None

    def __call__(self, share: Share) -> Tensor:
        self.calls.append(share)
        losses = torch.zeros(1)
        fresh = self.parameter.grad is None

        def again() -> None:
            total = share.batch.inputs.sum(dim=0) * share.weight
            self.buffer.copy_(total if fresh else self.buffer + total)
            losses.copy_(total.sum())

        if self.graph is None:
            again()
        else:
            self.graph.again = again
        self.parameter.grad = self.buffer
        return losses


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Computed:
    made = Computed()

    @contextmanager
    def recording(graph: StandIn, **options: Any) -> Iterator[None]:
        made.graph = graph
        yield
        made.graph = None

    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandIn)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(StandIn, "made", 0)
    return made


def updated(gradients: GraphedGradients, computed: Computed, share: Share) -> tuple[Any, Any]:
    computed.parameter.grad = None
    losses = gradients(share).tolist()
    assert computed.parameter.grad is not None
    return computed.parameter.grad.tolist(), losses


def test_what_is_replayed_is_what_would_have_been_computed(computed: Computed) -> None:
    gradients = GraphedGradients(computed, [computed.parameter, computed.unused])
    for number in range(SEEN + 3):
        share = Share(Rows(torch.full((3, 2), float(number))), 0.5)
        assert updated(gradients, computed, share) == ([1.5 * number] * 2, [3.0 * number])
        assert computed.unused.grad is None
    assert StandIn.made == 1
    assert len(computed.calls) == SEEN + 1  # the last one was recorded


def test_each_shape_is_recorded_by_itself_and_the_weight_is_that_of_the_share(
    computed: Computed,
) -> None:
    gradients = GraphedGradients(computed, [computed.parameter])
    for weight in (1.0, 0.25, 0.5, 0.75):
        for rows in (1, 2):
            share = Share(Rows(torch.ones(rows, 2), torch.ones(rows)), weight)
            assert updated(gradients, computed, share) == ([weight * rows] * 2, [2 * weight * rows])
    assert StandIn.made == 2


def test_what_adds_to_gradients_is_recorded_apart_from_what_begins_them(
    computed: Computed,
) -> None:
    gradients = GraphedGradients(computed, [computed.parameter])
    for number in range(SEEN + 2):
        share = Share(Rows(torch.full((1, 2), 1.0 + number)), 1.0)
        updated(gradients, computed, share)
        gradients(share)
        assert computed.buffer.tolist() == [2.0 + 2 * number] * 2
    assert StandIn.made == 2


def test_so_many_shapes_are_recorded_and_no_more(
    computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_SHAPES", 1)
    gradients = GraphedGradients(computed, [computed.parameter])
    for number in range(SEEN + 3):
        for rows in (1, 2):
            share = Share(Rows(torch.full((rows, 2), float(number))), 1.0)
            assert updated(gradients, computed, share)[0] == [number * float(rows)] * 2
    assert StandIn.made == 1


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 2])
def test_on_a_card_weights_are_those_without_graphs(accumulate: int) -> None:
    """With dropout: what is replayed draws the numbers that would have been drawn."""
    settings = replace(SHORT, epochs=8, accumulate=accumulate)
    found = []
    for graphed in (True, False):
        training = trainer(settings, dropout=0.2, sampler=SingleNetwork(PROBES[0]), device="cuda")
        if not graphed:
            training._graphed = None
        finished(training)
        if training._graphed is not None:
            assert training._graphed._recorded
        found.append({name: x.cpu() for name, x in training.model.state_dict().items()})
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=2e-3, atol=2e-4)
