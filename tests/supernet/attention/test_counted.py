"""What costs count of an operator, bytes of state and parameters, is what its kernel has."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from search_spaces.attention import AttentionSizes, StateSizes, operator_of, window_of
from search_spaces.errors import UsageError
from search_spaces.settings import ModelSettings
from supernet.attention import AttentionKernel, build_kernel
from tests.supernet.attention.test_contract import SETTINGS, draw

HEADS, KV_HEADS, HEAD_DIM, EMBED_DIM = 4, 2, 8, 12
WIDE = replace(SETTINGS, qkv_dim=None, head_dim=HEAD_DIM, max_length=64)
KINDS = (
    "softmax",
    "window:5",
    "window:16",
    *(f"linear:{name}" for name in ("cosformer", "norm", "elu", "hedgehog")),
    *(f"linear:{name}" for name in ("decay", "decay_channel", "gated_delta")),
)


def built(kind: str, settings: ModelSettings = WIDE) -> AttentionKernel:
    width = HEADS * HEAD_DIM
    return build_kernel(kind, settings, width, 1, "decoder", EMBED_DIM, HEADS, HEAD_DIM)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_counted_bytes_are_held(kind: str, dtype: torch.dtype) -> None:
    kernel = built(kind)
    kv_heads = KV_HEADS if kernel.takes_groups else HEADS
    for context in (1, 4, 5, 6, 40):
        q = draw(context, 1, batch=1, heads=HEADS, head_dim=HEAD_DIM, dtype=dtype)[0]
        _, k, v = draw(context, 1, batch=1, heads=kv_heads, head_dim=HEAD_DIM, dtype=dtype)
        x = torch.zeros(1, context, EMBED_DIM, dtype=dtype)
        read = {"x_BND": x} if kernel.reads_input else {}
        _, state = kernel.causal(q, k, v, **read)
        counted = operator_of(WIDE, kind, "decoder").state(
            WIDE,
            StateSizes(
                HEADS,
                kv_heads,
                HEAD_DIM,
                context,
                window_of(WIDE, kind),
                dtype_bytes=dtype.itemsize,
            ),
        )
        assert sum(part.nbytes for part in state) == counted


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "linear:cosformer"])
def test_counted_parameters_are_there(kind: str) -> None:
    width = HEADS * HEAD_DIM
    sizes = AttentionSizes(width, HEAD_DIM, 9, 9, 1, EMBED_DIM, window_of(WIDE, kind), causal=True)
    tally = operator_of(WIDE, kind, "decoder").cost(WIDE, sizes)
    assert sum(p.numel() for p in built(kind).parameters()) == tally.params


@pytest.mark.parametrize(
    "kind", ["window:5", "linear:decay", "linear:decay_channel", "linear:gated_delta"]
)
def test_what_goes_along_one_sequence_crosses_none(kind: str) -> None:
    with pytest.raises(UsageError, match="goes along one sequence"):
        build_kernel(kind, WIDE, 32, 1, "cross", EMBED_DIM, HEADS, HEAD_DIM)


def test_a_class_token_or_a_first_one_is_seen_by_all_windows() -> None:
    def gradient(settings: ModelSettings) -> torch.Tensor:
        q, k, v = draw(30, 1, batch=1, heads=1, head_dim=HEAD_DIM)
        v.requires_grad_()
        kernel = build_kernel("window:3", settings, 32, 1)
        kernel(q, k, v, key_mask_BM=None)[:, :, 20].sum().backward()
        assert v.grad is not None
        return v.grad[0, 0].abs().sum(dim=-1).nonzero().flatten()

    near = list(range(17, 24))
    assert gradient(WIDE).tolist() == near
    for first in ("class_token", "window_first"):
        assert gradient(replace(WIDE, **{first: True})).tolist() == [0, *near]


def test_a_window_s_pairs_are_counted() -> None:
    both = ("class_token", "window_first")
    for first in ((), both[:1], both[1:], both):
        settings = replace(WIDE, **dict.fromkeys(first, True))
        for positions in (1, 3, 4, 9):
            sizes = AttentionSizes(32, HEAD_DIM, positions, positions, 1, EMBED_DIM, window=3)
            pairs = sum(
                abs(i - j) <= 3 or (bool(first) and 0 in (i, j))
                for i in range(positions)
                for j in range(positions)
            )
            cost = operator_of(settings, "window:3").cost
            assert cost(settings, sizes).products == 2 * pairs * 32
            causal = sum(0 <= i - j < 3 for i in range(positions) for j in range(positions))
            found = cost(settings, sizes._replace(causal=True)).products
            assert found == 2 * causal * 32
