"""The memory of a language model as Transformer-XL writes it down, one query at a time.

Source: Dai et al., "Transformer-XL" (2019), section 3.2: a layer's memory is the input of that
layer at earlier positions, which is projected to keys and values anew for every segment.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.architecture import Architecture, DecoderLayer
from supernet.blocks import Projections
from supernet.decoder import ElasticDecoderBlock
from supernet.layers import ElasticEmbedding
from supernet.sequence_models import LanguageModel


def naive_by_segments(
    model: LanguageModel, text_BT: Tensor, architecture: Architecture, sizes: Iterable[int]
) -> Tensor:
    """Logits ``(B, T, V)`` of a text that is read in segments of these sizes."""
    decoder = architecture.decoder
    assert decoder is not None
    width, found = decoder.embed_dim, []
    table = model.tables[-1]
    assert isinstance(table, ElasticEmbedding)
    table_VD = table.weight[:, :width]
    remembered = [table_VD.new_zeros(len(text_BT), 0, width) for _ in decoder.layers]
    for segment_BN in text_BT.split(list(sizes), dim=1):
        x_BND = table_VD[segment_BN] * width**0.5
        for number, layer in enumerate(decoder.layers):
            block = model.decoder.blocks[number]
            assert isinstance(block, ElasticDecoderBlock)
            seen_BMD = torch.cat((remembered[number], x_BND), dim=1)
            remembered[number] = seen_BMD[:, max(seen_BMD.shape[1] - decoder.memory_length, 0) :]
            x_BND = _layer(model, block, layer, x_BND, seen_BMD)
        if model.decoder.final_norm is not None:
            x_BND = model.decoder.final_norm(x_BND)
        found.append(x_BND @ table_VD.T)
    return torch.cat(found, dim=1)


def _layer(
    model: LanguageModel,
    block: ElasticDecoderBlock,
    layer: DecoderLayer,
    x_BND: Tensor,
    seen_BMD: Tensor,
) -> Tensor:
    if block.pre_norm:
        norm = block.self_norm
        x_BND = x_BND + _attention(model, block, layer, norm(x_BND), norm(seen_BMD))
        return x_BND + block.ffn(block.ffn_norm(x_BND), layer.ffn_dim)  # type: ignore[no-any-return]
    x_BND = block.self_norm(x_BND + _attention(model, block, layer, x_BND, seen_BMD))
    return block.ffn_norm(x_BND + block.ffn(x_BND, layer.ffn_dim))  # type: ignore[no-any-return]


def _attention(
    model: LanguageModel,
    block: ElasticDecoderBlock,
    layer: DecoderLayer,
    x_BND: Tensor,
    seen_BMD: Tensor,
) -> Tensor:
    """Query i stands at the end of the memory plus i; keys behind it are left out."""
    attention = block.self_attention
    own, far = attention.projections["shared"], model.settings.relative_positions
    width = model.settings.attention_dim(layer.self_num_heads)
    head = width // layer.self_num_heads
    table_CW = attention.kernels["softmax"].relative_keys_CW
    assert isinstance(table_CW, Tensor) and isinstance(own, Projections)
    q_BNW, k_BMW, v_BMW = (
        own.query(x_BND, width),
        own.key(seen_BMD, width),
        own.value(seen_BMD, width),
    )
    before = seen_BMD.shape[1] - x_BND.shape[1]
    out_BNW = torch.zeros_like(q_BNW)
    for i in range(x_BND.shape[1]):
        place = before + i
        rows = [max(j - place, -far) + far for j in range(place + 1)]
        for h in range(layer.self_num_heads):
            part = slice(h * head, (h + 1) * head)
            keys_BJD = k_BMW[:, : place + 1, part] + table_CW[rows, part]
            logits_BJ = torch.einsum("bd,bjd->bj", q_BNW[:, i, part], keys_BJD) / head**0.5
            weight_BJ = F.softmax(logits_BJ, dim=1)
            out_BNW[:, i, part] = torch.einsum("bj,bjd->bd", weight_BJ, v_BMW[:, : place + 1, part])
    return own.output(out_BNW, x_BND.shape[2])  # type: ignore[no-any-return]
