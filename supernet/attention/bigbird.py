"""BigBird: block-sparse softmax attention, for encoders and for decoders.

Shapes: B batch, H heads, N queries, M keys, D width of one head, Q query blocks, K key blocks (or
blocks attended), S states per block.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from supernet.attention.base import (
    AttentionKernel,
    State,
    check_length,
    first_position,
    state_positions,
)
from supernet.attention.softmax import (
    appended,
    masked_attention,
    packed,
    past_attention,
    visible_attention,
)


class BigBirdKernel(AttentionKernel):
    """Block-sparse softmax attention: a window, two global blocks, and random blocks.

    Positions are cut into blocks from the first real token on, so all states of a position stay
    together. The first two blocks see everything and are seen by all. Any other block sees 8 blocks
    (or all, if there are fewer): the global ones, itself and its neighbours, and as many random
    ones as are left, which is 3 inside of the sequence. The random blocks follow a fixed order of
    preference and skip blocks that hold padding only, so padding never changes the choice. Up to 8
    blocks this is full attention.

    Source: Zaheer et al., Big Bird (2020), section 2 and appendix D. Differences: the global blocks
    are the first two instead of the first and the last, because the last moves with the length;
    and the places of window blocks that do not exist, or are global, go to random blocks.

    In a decoder every block sees blocks of the past only, the global blocks included, and of its
    own block what is not in the future; a block of the past is chosen by the same preferences, so
    that the choice does not depend on how long the sequence becomes. What is carried are all keys
    and values. In cross-attention a query sees the blocks that a query at its position would see
    of its own sequence; all products are computed there, and what is not seen is masked.
    """

    GLOBAL_BLOCKS = 2
    NEIGHBOURS = 1
    ATTENDED_BLOCKS = 8
    SEED = 20200728

    priority: Tensor

    def __init__(self, block: int, max_length: int) -> None:
        """Build the kernel.

        Args:
            block: positions per block.
            max_length: positions of the longest sequence.
        """
        super().__init__()
        self.block = block
        self.max_length = max_length
        num_blocks = -(-max_length // block)
        self.register_buffer("priority", self._priorities(num_blocks), persistent=False)

    @classmethod
    def _priorities(cls, num_blocks: int) -> Tensor:
        """How much query block i wants key block j; integers, all different within a row."""
        generator = torch.Generator().manual_seed(cls.SEED)
        chance_QK = torch.rand(num_blocks, num_blocks, generator=generator, dtype=torch.float64)
        block_K = torch.arange(num_blocks)
        near_QK = (block_K[:, None] - block_K[None, :]).abs() <= cls.NEIGHBOURS
        always_QK = near_QK | (block_K < cls.GLOBAL_BLOCKS)[None, :]
        return chance_QK.argsort(dim=1) + num_blocks * always_QK

    def forward(
        self,
        q_BHND: Tensor,
        k_BHMD: Tensor,
        v_BHMD: Tensor,
        *,
        key_mask_BM: Tensor | None,
        span: int = 1,
    ) -> Tensor:
        """Attend; see `AttentionKernel.forward`."""
        batch, states = k_BHMD.shape[0], k_BHMD.shape[2]
        if key_mask_BM is None:
            check_length(states, span, self.max_length)
        num_blocks = min(-(-states // (span * self.block)), self.priority.shape[0])
        if num_blocks <= self.ATTENDED_BLOCKS:
            return masked_attention(q_BHND, k_BHMD, v_BHMD, key_mask_BM)
        if key_mask_BM is None:
            mask_BM = torch.ones(batch, states, dtype=torch.bool, device=k_BHMD.device)
            start_B1 = None
        else:
            mask_BM = key_mask_BM
            start_B1 = first_position(key_mask_BM, span)[:, None] * span
        shape = (num_blocks, self.block * span)
        # Heads last but one: a block is then one piece of memory, which is gathered whole.
        q, k, v = (
            _to_blocks(_rolled(x.transpose(1, 2), start_B1), shape)
            for x in (q_BHND, k_BHMD, v_BHMD)
        )
        mask_BQS = _to_blocks(_rolled(mask_BM, start_B1), shape)
        out_BNHD = _resized(self._attend(q, k, v, mask_BQS), states)
        return _rolled(out_BNHD, None if start_B1 is None else -start_B1).transpose(1, 2)

    def _attend(self, q_BQSHD: Tensor, k: Tensor, v: Tensor, mask_BQS: Tensor) -> Tensor:
        """Attention of blocked states, ``(B, Q * S, H, D)``."""
        batch, num_blocks, _ = mask_BQS.shape
        dense = self.GLOBAL_BLOCKS
        everywhere_BHND = masked_attention(
            q_BQSHD[:, :dense].flatten(1, 2).transpose(1, 2),
            k.flatten(1, 2).transpose(1, 2),
            v.flatten(1, 2).transpose(1, 2),
            mask_BQS.flatten(1),
        )
        chosen_bK = self._chosen_blocks(mask_BQS.any(dim=2))
        sparse_bHSD = masked_attention(
            q_BQSHD[:, dense:].flatten(0, 1).transpose(1, 2),
            _gathered(k, chosen_bK).transpose(1, 2),
            _gathered(v, chosen_bK).transpose(1, 2),
            _gathered(mask_BQS, chosen_bK),
        )
        sparse_BnHD = sparse_bHSD.transpose(1, 2).unflatten(0, (batch, num_blocks - dense))
        return torch.cat((everywhere_BHND.transpose(1, 2), sparse_BnHD.flatten(1, 2)), dim=1)

    def _chosen_blocks(self, real_BK: Tensor) -> Tensor:
        """Key blocks of every query block that is not global.

        Args:
            real_BK: whether a block holds a real token, ``(B, blocks)``.

        Returns:
            Numbers of blocks, counted through the whole batch, ``(B * query blocks, 8)``. Where a
            sample has fewer than 8 the rest are blocks of padding, whose keys are masked anyway.
        """
        batch, num_blocks = real_BK.shape
        wish_QK = self.priority[self.GLOBAL_BLOCKS : num_blocks, :num_blocks]
        wish_BQK = wish_QK[None].masked_fill(~real_BK[:, None, :], -1)
        chosen_BQK = wish_BQK.topk(self.ATTENDED_BLOCKS, dim=2).indices
        sample_B11 = torch.arange(batch, device=real_BK.device)[:, None, None]
        return (chosen_BQK + num_blocks * sample_B11).flatten(0, 1)

    def causal(
        self,
        q_BHND: Tensor,
        k_BHND: Tensor,
        v_BHND: Tensor,
        *,
        key_mask_BN: Tensor | None = None,
        span: int = 1,
        state: State | None = None,
    ) -> tuple[Tensor, State]:
        """Attend to blocks of the past; see `AttentionKernel.causal`."""
        if state is None and key_mask_BN is None:
            check_length(k_BHND.shape[2], span, self.max_length)
        k, v, mask_BM = appended(state, k_BHND, v_BHND, key_mask_BN)
        num_blocks = min(-(-k.shape[2] // (span * self.block)), self.priority.shape[0])
        if num_blocks <= self.ATTENDED_BLOCKS:
            out_BHND = past_attention(q_BHND, k, v, mask_BM, span)
        elif state is None:
            out_BHND = self._causal_blocks(q_BHND, k, v, mask_BM, span, num_blocks)
        else:
            visible_BNM = self._visible_past(q_BHND.shape[2], mask_BM, k, span)
            out_BHND = visible_attention(q_BHND, k, v, visible_BNM, mask_BM)
        return out_BHND, packed(k, v, mask_BM)

    def memory(
        self, k_BHMD: Tensor, v_BHMD: Tensor, *, key_mask_BM: Tensor | None, span: int = 1
    ) -> State:
        """Keys, values, and the block of every key, -1 at padding; see `AttentionKernel.memory`."""
        batch, _, keys, _ = k_BHMD.shape
        if key_mask_BM is None:
            check_length(keys, span, self.max_length)
            key_mask_BM = torch.ones(batch, keys, dtype=torch.bool, device=k_BHMD.device)
        positions_BM = state_positions(key_mask_BM, keys, span, k_BHMD.device)
        return k_BHMD, v_BHMD, self._block_of(positions_BM).masked_fill(~key_mask_BM, -1)

    def read(self, q_BHND: Tensor, memory: State, positions_1N: Tensor) -> Tensor:
        """Attend to the blocks for the queries' positions; see `AttentionKernel.read`."""
        k_BHMD, v_BHMD, block_BM = memory
        mask_BM, block_BM = block_BM >= 0, block_BM.clamp(min=0)
        batch = mask_BM.shape[0]
        sample_B1 = torch.arange(batch, device=mask_BM.device)[:, None]
        count_BK = mask_BM.new_zeros(batch, len(self.priority), dtype=torch.int64)
        count_BK = count_BK.scatter_add(1, block_BM, mask_BM.long())
        wish_BQK = self.priority[None].masked_fill(count_BK[:, None, :] == 0, -1)
        visible_BQK = _among_the_first(wish_BQK, self.ATTENDED_BLOCKS)
        visible_BQK[:, : self.GLOBAL_BLOCKS] = True
        block_1N = self._block_of(positions_1N)
        seen_BNM = visible_BQK[sample_B1[:, :, None], block_1N[:, :, None], block_BM[:, None, :]]
        seen_BNM = seen_BNM & mask_BM[:, None, :]
        hidden_B1 = ~mask_BM.any(dim=1, keepdim=True)
        mask_B1NM = (seen_BNM | hidden_B1[:, :, None])[:, None]
        out_BHND = F.scaled_dot_product_attention(q_BHND, k_BHMD, v_BHMD, attn_mask=mask_B1NM)
        return out_BHND.masked_fill(hidden_B1[:, :, None, None], 0.0)

    def _block_of(self, positions_BN: Tensor) -> Tensor:
        return (positions_BN // self.block).clamp(0, len(self.priority) - 1)

    def _past_wish(self) -> Tensor:
        """`priority` with -1 for blocks of the future, ``(Q, K)``."""
        block_K = torch.arange(len(self.priority), device=self.priority.device)
        return self.priority.masked_fill(block_K[None, :] > block_K[:, None], -1)

    def _visible_past(
        self, queries: int, mask_BM: Tensor | None, k_BHMD: Tensor, span: int
    ) -> Tensor:
        """Which keys each of the last queries may see, ``(B, N, M)`` or ``(1, N, M)``."""
        keys = k_BHMD.shape[2]
        positions_BM = state_positions(mask_BM, keys, span, k_BHMD.device)
        block_BM = self._block_of(positions_BM)
        chosen_QK = _among_the_first(self._past_wish(), self.ATTENDED_BLOCKS)
        seen_BNM = chosen_QK[block_BM[:, keys - queries :, None], block_BM[:, None, :]]
        return seen_BNM & (positions_BM[:, None, :] <= positions_BM[:, keys - queries :, None])

    def _causal_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, mask_BM: Tensor | None, span: int, num_blocks: int
    ) -> Tensor:
        """Causal attention of a whole sequence, only to the chosen blocks; ``(B, H, N, D)``.

        The past of a real position is real throughout, so no mask of the keys is needed.
        """
        batch, _, states, _ = k.shape
        start_B1 = None if mask_BM is None else first_position(mask_BM, span)[:, None] * span
        size = self.block * span
        q, k, v = (
            _to_blocks(_rolled(x.transpose(1, 2), start_B1), (num_blocks, size)) for x in (q, k, v)
        )
        wish_QK = self._past_wish()[:num_blocks, :num_blocks]
        chosen_QK = wish_QK.topk(self.ATTENDED_BLOCKS, dim=1).indices
        position_S = torch.arange(size, device=k.device) // span
        place_QK = chosen_QK - torch.arange(num_blocks, device=k.device)[:, None]
        key_QKS = place_QK[:, :, None] * self.block + position_S
        visible_QSM = key_QKS.flatten(1)[:, None, :] <= position_S[:, None]
        sample_B11 = torch.arange(batch, device=k.device)[:, None, None]
        chosen_bK = (chosen_QK + num_blocks * sample_B11).flatten(0, 1)
        out_bHSD = F.scaled_dot_product_attention(
            q.flatten(0, 1).transpose(1, 2),
            _gathered(k, chosen_bK).transpose(1, 2),
            _gathered(v, chosen_bK).transpose(1, 2),
            attn_mask=visible_QSM.repeat(batch, 1, 1)[:, None],
        )
        out_BNHD = out_bHSD.transpose(1, 2).unflatten(0, (batch, num_blocks)).flatten(1, 2)
        out_BNHD = _rolled(_resized(out_BNHD, states), None if start_B1 is None else -start_B1)
        out_BHND = out_BNHD.transpose(1, 2)
        if mask_BM is None:
            return out_BHND
        return out_BHND.masked_fill(~mask_BM.any(dim=1)[:, None, None, None], 0.0)


def _rolled(x_BN: Tensor, start_B1: Tensor | None) -> Tensor:
    """The states ``(B, N, ...)`` of every sample, rolled so that `start` comes first."""
    if start_B1 is None:
        return x_BN
    states = x_BN.shape[1]
    index_BN = (torch.arange(states, device=x_BN.device) + start_B1) % states
    sample_B1 = torch.arange(x_BN.shape[0], device=x_BN.device)[:, None]
    return x_BN[sample_B1, index_BN]


def _resized(x_BN: Tensor, states: int) -> Tensor:
    """The first `states` of ``(B, N, ...)``, with zeros where there are fewer."""
    return F.pad(x_BN, (0, 0) * (x_BN.dim() - 2) + (0, states - x_BN.shape[1]))


def _to_blocks(x_BN: Tensor, shape: tuple[int, int]) -> Tensor:
    """States ``(B, N, ...)`` → ``(B, blocks, states per block, ...)``."""
    blocks, size = shape
    return _resized(x_BN, blocks * size).reshape(-1, blocks, size, *x_BN.shape[2:])


def _gathered(x_BKS: Tensor, chosen_bK: Tensor) -> Tensor:
    """For every query block the states of its key blocks, ``(b, K * S, ...)``."""
    blocks = x_BKS.flatten(0, 1).index_select(0, chosen_bK.flatten())
    return blocks.reshape(len(chosen_bK), -1, *x_BKS.shape[3:])


def _among_the_first(wish_QK: Tensor, count: int) -> Tensor:
    """True at the `count` largest wishes of each row that are not -1; of the same shape."""
    first = wish_QK.topk(min(count, wish_QK.shape[-1]), dim=-1)
    chosen = torch.zeros_like(wish_QK, dtype=torch.bool)
    return chosen.scatter(-1, first.indices, first.values >= 0)
