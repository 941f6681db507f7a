"""Step by step with carried state is the same as one pass, and linear states do not grow."""

from __future__ import annotations

import pytest
import torch

from supernet.attention import causal_linear
from tests.supernet.attention.test_contract import assert_near, at, draw, mask_of, run
from tests.support.decoder_attention_cases import (
    DECODER_CASES,
    DecoderCase,
    in_pieces,
    places,
    whole,
)


@pytest.fixture(params=DECODER_CASES, ids=[case.name for case in DECODER_CASES])
def case(request: pytest.FixtureRequest) -> DecoderCase:
    chosen: DecoderCase = request.param
    return chosen


def test_pieces_are_the_whole(case: DecoderCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal_linear, "CHUNK_STATES", 7)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        kernel, span = case.build(dtype=dtype), case.span
        qkv = draw(22, span, dtype=dtype)
        parallel = run(whole(kernel, None, span), qkv, None, kernel.parameters())
        for sizes in ([1] * 22, [9, 1, 1, 11], [20, 2], [1, 21], [3] * 7 + [1]):
            stepwise = run(in_pieces(kernel, sizes, span), qkv, None, kernel.parameters())
            with at(dtype, sizes):
                assert_near(stepwise, parallel, tolerance)


def test_prompts_of_different_lengths(case: DecoderCase) -> None:
    """Padded in front; what follows counts on from each sample's own length."""
    kernel, span = case.build(), case.span
    mask = mask_of(22, span, [(0, 22), (5, 22)])
    qkv = draw(22, span)
    parallel = run(whole(kernel, mask, span), qkv, mask, kernel.parameters())
    for sizes in ([8] + [1] * 14, [7, 8, 7]):
        stepwise = run(in_pieces(kernel, sizes, span, mask), qkv, mask, kernel.parameters())
        with at(sizes):
            assert_near(stepwise, parallel, 1e-10)


def test_a_state_is_reordered_by_its_first_dimension(case: DecoderCase) -> None:
    kernel, span = case.build(), case.span
    q, k, v = draw(20, span, batch=3)
    rows = torch.tensor([2, 0, 0, 1])
    first, rest = slice(0, 12 * span), slice(12 * span, None)
    _, state = kernel.causal(*(x[:, :, first] for x in (q, k, v)), span=span)
    moved = tuple(part.index_select(0, rows) for part in state)
    assert all(len(part) == 3 for part in state)
    own = {"span": span, **places(kernel, 12, 8, span)}
    found, _ = kernel.causal(*(x[rows][:, :, rest] for x in (q, k, v)), state=moved, **own)
    expected, _ = kernel.causal(*(x[:, :, rest] for x in (q, k, v)), state=state, **own)
    assert_near([found.detach()], [expected[rows].detach()], 1e-11)


def test_linear_states_do_not_grow(case: DecoderCase) -> None:
    kernel, span = case.build(), case.span
    sizes = []
    for length in (1, 9, 20):
        state = kernel.causal(*draw(length, span), span=span)[1]
        sizes.append(sum(part.numel() for part in state))
    linear = case.name.startswith(("cosformer", "norm", "performer"))
    assert (sizes[0] == sizes[1] == sizes[2]) is linear
    if not linear:
        assert sizes == [2 * 2 * 2 * 4 * span * length for length in (1, 9, 20)]


def test_a_lost_state_shows(case: DecoderCase) -> None:
    """The published defect: with its state lost, attention returns what stands at the position."""
    kernel, span = case.build(), case.span
    qkv = draw(12, span)
    expected = whole(kernel, None, span)(*qkv)
    last = tuple(x[:, :, 11 * span :] for x in qkv)
    lost = kernel.causal(*last, span=span)[0]
    assert (lost - expected[:, :, 11 * span :]).abs().max() > 1e-2
    if span == 1 and case.name != "norm":
        assert_near([lost.detach()], [last[2]], 1e-12)
