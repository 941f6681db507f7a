"""A state behind a long context that nobody has read: as if somebody had, but for its numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from search_spaces.attention import OPERATORS
from search_spaces.loading import parse_space
from search_spaces.variation import sample_distinct
from supernet import filled_state as module
from supernet.attention.kernels import KERNELS
from supernet.building import build_network
from supernet.decoding_state import DecodingState
from supernet.extraction import StandAlone
from supernet.filled_state import filled_state, start_of
from supernet.sequence_models import SequenceModel
from tests.nas.objectives.test_cache import WAYS, space_of
from tests.support.task_cases import networks_of, with_memory
from tests.support.trained_cases import LANGUAGE

CAUSAL = sorted(n for n in OPERATORS.keys() & KERNELS.keys() if OPERATORS[n].causal)


@pytest.fixture(autouse=True)
def _a_short_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEGINNING", 4)


def kept(state: DecodingState) -> list[list[tuple[object, ...]]]:
    """Shapes and types of all that is carried."""
    assert state.states is not None
    return [[(part.shape, part.dtype) for part in layer] for layer in state.states]


@torch.inference_mode()
def check(network: StandAlone, tokens_BN: torch.Tensor, dtype: torch.dtype) -> None:
    """What a filled state shares with one that was read, and that a token can follow it."""
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        read = network.prefill(tokens_BN, start_of(network, tokens_BN))[1]
        filled = filled_state(network, tokens_BN)
        assert filled.position == read.position and kept(filled) == kept(read)
        after_filled = network.step(tokens_BN[:, -1:], filled)
        after_read = network.step(tokens_BN[:, -1:], read)
        assert after_filled[0].isfinite().all()
        assert kept(after_filled[1]) == kept(after_read[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [3, 4, 5, 37])
@pytest.mark.parametrize("name", CAUSAL)
def test_it_is_shaped_like_one_that_was_read(name: str, length: int, dtype: torch.dtype) -> None:
    kind, settings = WAYS[name]
    space = space_of(f'"{kind}"', settings)
    for architecture in space.decode(sample_distinct(space, np.random.default_rng(length), 8)):
        network = build_network(space.model, space.task, architecture).eval()
        check(network, torch.randint(1, 11, (2, length)), dtype)


def test_layers_of_several_kinds_and_a_memory_of_segments_before() -> None:
    space = parse_space(with_memory(LANGUAGE), "space")
    networks = [one for one in networks_of(space, 9) if one.decoder]
    assert {bool(one.decoder and one.decoder.memory_length) for one in networks} == {True, False}
    for architecture in networks:
        network = build_network(space.model, space.task, architecture).eval()
        check(network, torch.randint(1, 90, (3, 11)), torch.float32)


def test_of_a_long_context_only_the_beginning_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of()
    network = build_network(space.model, space.task, networks_of(space, 1)[0]).eval()
    weights = [one.clone() for one in network.parameters()]
    seen: list[tuple[str, int]] = []
    original = SequenceModel._read

    def read(model: SequenceModel, tokens: torch.Tensor, *rest: object) -> object:
        seen.append((tokens.device.type, tokens.shape[1]))
        return original(model, tokens, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(SequenceModel, "_read", read)
    filled_state(network, torch.ones(1, 60, dtype=torch.long))
    assert seen == [("cpu", 4), ("meta", 60)]
    assert all(map(torch.equal, weights, network.parameters()))
