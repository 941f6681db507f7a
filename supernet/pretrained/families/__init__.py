"""The families whose checkpoints are known, by ``model_type``: of transformers, and our own."""

from __future__ import annotations

from supernet.pretrained.families.base import Family, StockFamily
from supernet.pretrained.families.bert import BertFamily
from supernet.pretrained.families.gpt2 import GPT2Family
from supernet.pretrained.families.llama import (
    LlamaFamily,
    MistralFamily,
    Qwen2Family,
    Qwen3Family,
)
from supernet.pretrained.families.own import OwnFamily
from supernet.pretrained.families.vit import ViTFamily

FAMILIES: dict[str, StockFamily] = {
    family.model_type: family
    for family in (
        BertFamily(),
        GPT2Family(),
        LlamaFamily(),
        MistralFamily(),
        Qwen2Family(),
        Qwen3Family(),
        ViTFamily(),
    )
}
"""Those that transformers has without code of ours."""
KNOWN: dict[str, Family] = {**FAMILIES, OwnFamily.model_type: OwnFamily()}
