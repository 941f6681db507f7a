"""Calls as a server runs them; the card itself is a stand-in but in the tests marked ``gpu``."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from latency.runtimes import WARM_CALLS, CastParameters, compiled, replayed
from latency.timer import in_precision, inference


class Card:
    """Notes what is asked of CUDA."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.capturing = False
        self.replays = 0
        card = self

        class Graph:
            def replay(self) -> None:
                card.replays += 1

        class Stream:
            def wait_stream(self, other: Any) -> None:
                assert not card.capturing

        @contextmanager
        def graph(captured: Graph, capture_error_mode: str) -> Any:
            self.capturing = True
            yield
            self.capturing = False

        # Autocast of the processor stands in for the card's.
        near = partial(in_precision, "cpu")
        monkeypatch.setattr("latency.runtimes.in_precision", lambda _, dtype: near(dtype))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "current_stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", nullcontext)
        monkeypatch.setattr(torch.cuda, "device", nullcontext)
        monkeypatch.setattr(torch.cuda, "graph", graph)


def test_a_call_is_warmed_up_captured_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    card, seen = Card(monkeypatch), list[bool]()

    def call() -> int:
        assert not torch.is_grad_enabled()
        seen.append(card.capturing)
        return len(seen)

    replay = replayed(call, "cuda", "float32")
    assert seen == [False] * WARM_CALLS + [True]
    assert [replay(), replay()] == [WARM_CALLS + 1] * 2
    assert card.replays == 2 and len(seen) == WARM_CALLS + 1


def test_parameters_are_cast_before_the_capture_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch)
    network, x = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)), torch.ones(2, 4)
    casts: list[bool] = []
    found = CastParameters.__torch_dispatch__

    def noted(self: CastParameters, func: Any, *rest: Any) -> Any:
        casts.append(card.capturing)
        return found(self, func, *rest)

    monkeypatch.setattr(CastParameters, "__torch_dispatch__", noted)
    replay = replayed(lambda: network(x), "cuda", "bfloat16")
    _, cast = replay.kept
    assert replay.result.dtype == torch.bfloat16 and not any(casts)  # type: ignore[attr-defined]
    weights = [one.bfloat16() for one in network.parameters()]
    assert len(cast) == len(weights)  # type: ignore[arg-type]
    for one in weights:
        assert any(torch.equal(one, other) for other in cast)  # type: ignore[attr-defined]


def test_each_network_is_compiled_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch gives up a function after eight variants, silently where parts of it may stay."""
    made: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        made.append(module)
        return module.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    for width in range(2, 13):
        network, x = nn.Linear(width, 3).eval(), torch.ones(2, width)
        ready = compiled(partial(network, x), "cpu", "float32")
        with inference("cpu", "float32"):
            torch.testing.assert_close(ready(), network(x))
    assert len(made) == 11


def test_what_cannot_be_compiled_is_an_error_and_no_slow_call() -> None:
    x = torch.ones(3)
    with pytest.raises(RuntimeError):
        compiled(lambda: x.numpy().tobytes(), "cpu", "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_replay_is_the_call(dtype: Any) -> None:
    network = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).cuda()
    x = torch.randn(8, 64, device="cuda")
    with inference("cuda", dtype):
        network(x)  # cuBLAS keeps what it works in
    replay = replayed(lambda: network(x), "cuda", dtype)
    before = torch.cuda.memory_allocated()
    spare = [torch.full((64, 128), float("nan"), device="cuda") for _ in range(64)]
    with inference("cuda", dtype):
        for _ in range(2):
            x.copy_(torch.randn_like(x))
            torch.testing.assert_close(replay(), network(x), rtol=1e-2, atol=1e-2)
    del spare
    assert torch.cuda.memory_allocated() <= before + 2**20


@pytest.mark.gpu
def test_what_waits_for_the_card_cannot_be_captured() -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError):
        replayed(lambda: x.sum().item(), "cuda", "float32")
    torch.cuda.synchronize()
    assert float(x.sum()) == 3.0  # the card is as it was
