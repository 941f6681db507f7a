"""Tiny random checkpoints of every family, as transformers writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.space import SearchSpace, Slot
from search_spaces.tasks import TASKS
from supernet.pretrained.checkpoint import Checkpoint
from supernet.pretrained.families import FAMILIES as ADAPTERS
from tests.support.tokenizer_cases import word_pieces, write_checkpoint

FAMILIES = ("bert", "gpt2", "llama", "mistral", "qwen2", "qwen3", "vit")
SEARCHED = tuple(name for name in FAMILIES if ADAPTERS[name].task in TASKS)
"""Families whose networks are searched."""
DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
CLASSES = {
    "bert": ("BertConfig", "BertModel"),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "vit": ("ViTConfig", "ViTForImageClassification"),
}
VOCABULARY, POSITIONS, WINDOW = 61, 48, 5

_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}
_MARKS = {"bos_token_id": 1, "eos_token_id": 2}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "bert": {**_SMALL, "type_vocab_size": 3},
    "gpt2": {
        "vocab_size": VOCABULARY,
        "n_embd": 24,
        "n_layer": 3,
        "n_head": 4,
        "n_inner": 40,
        "n_positions": POSITIONS,
        **_MARKS,
    },
    "llama": {**_GROUPED, "head_dim": 10},
    "mistral": {**_GROUPED, "sliding_window": WINDOW, "head_dim": 6},
    "qwen2": {
        **_GROUPED,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": {
        **_GROUPED,
        "head_dim": 8,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "vit": {
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "image_size": 12,
        "patch_size": 4,
        "num_channels": 2,
        "num_labels": 5,
    },
}

LINEAR = {"rope_type": "linear", "factor": 2.5}
STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 20.0,  # so that of five waves one stays, two are stretched in part and two wholly
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
"""Forms of rotary positions that are stretched for longer texts."""


def random_model(hub: Any, family: str, seed: int = 0, **changes: Any) -> Any:
    """A model of transformers none of whose parameters is left at its beginning."""
    config_class, model_class = CLASSES[family]
    config = getattr(hub, config_class)(**{**SETTINGS[family], **changes})
    config._attn_implementation = "eager"
    model = getattr(hub, model_class)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            near = 1.0 if parameter.dim() == 1 and bool((parameter == 1).all()) else 0.0
            parameter.copy_(near + 0.2 * noise)
    return model


def write_model(hub: Any, folder: Path, family: str, **changes: Any) -> Path:
    """The folder of `random_model`."""
    random_model(hub, family, **changes).save_pretrained(folder)
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    """Set keys of ``config.json``; None for one that is taken out."""
    file = folder / "config.json"
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: v for key, v in values.items() if v is not None}))


def tokens_of(seed: int, batch: int = 3, length: int = 20) -> Tensor:
    """Tokens ``(B, N)``, token 0 among them."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (batch, length), generator=generator)
    tokens[0, :3] = 0
    return tokens


def inputs_of(checkpoint: Checkpoint, seed: int, batch: int = 3) -> Tensor:
    """What a checkpoint's network reads: images, or tokens, with padding in encoders."""
    if checkpoint.family == "vit":
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, 2, 12, 12, generator=generator)
    tokens = tokens_of(seed, batch)
    if checkpoint.family != "bert":
        return tokens
    return tokens.clamp(min=3).masked_fill(~mask_of("right", batch), 0)


def offering(space: SearchSpace, gene: str, *choices: Any) -> SearchSpace:
    """The space with other choices of a gene, in every layer where it has one."""
    slots = [
        Slot(slot.stack, slot.gene, slot.layer, choices) if slot.gene == gene else slot
        for slot in space.slots
    ]
    return replace(space, slots=tuple(slots))


def kinds_gene(checkpoint: Checkpoint) -> str:
    """The name of the gene of self-attention."""
    return "attention" if checkpoint.architecture.encoder is not None else "self_attention"


def layers_of(architecture: Architecture) -> tuple[Any, ...]:
    """The layers of the only stack."""
    stack = architecture.encoder or architecture.decoder
    assert stack is not None
    return stack.layers


def mask_of(side: str, batch: int = 3, length: int = 20) -> Tensor:
    """Which positions are real: 0, 3, 6 … of a row are padding, on one side."""
    lengths = length - 3 * torch.arange(batch)
    ahead = torch.arange(length) < lengths[:, None]
    return ahead if side == "right" else ahead.flip(1)


def st_folder(folder: Path, mode: str = "mean", unit_length: bool = True) -> Path:
    """Make a folder of transformers one of sentence-transformers."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if unit_length else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(zip(kinds, paths, strict=False))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
    pooling = {"word_embedding_dimension": 24, **{key: False for key in modes.values()}}
    pooling[modes.get(mode, mode)] = True
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    length = {"max_seq_length": 32, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(length))
    return folder


def sentence_encoder(hub: Any, folder: Path, **changes: Any) -> Path:
    """A tiny BERT of sentence-transformers with its tokenizer, `tokenizer_cases.word_pieces`."""
    st_folder(write_model(hub, folder, "bert", **{"vocab_size": 90, **changes}))
    return write_checkpoint(folder, word_pieces(), pad_token="[PAD]")
