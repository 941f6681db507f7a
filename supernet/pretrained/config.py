"""``config.json`` of a checkpoint, read key by key, so that no setting is passed over.

A family asks for the settings it knows. What is left at the end, and is not known to leave outputs
alone, is refused by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from search_spaces.errors import DataError
from search_spaces.toml.source import shown

Value = TypeVar("Value")
LARGEST_SIZE = 1 << 24

# Of training, of writing, of names: they change no output of a network that is only read with.
WITHOUT_EFFECT = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled
    _name_or_path _num_labels architectures attention_dropout attention_probs_dropout_prob
    attn_pdrop bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward
    classifier_dropout cls_token_id decoder_start_token_id directionality diversity_penalty
    do_sample dtype early_stopping embd_pdrop encoder_no_repeat_ngram_size encoder_stride
    eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id gradient_checkpointing hidden_dropout_prob id2label initializer_range
    is_llama_config keys_to_ignore_at_inference label2id language length_penalty license
    mask_token_id max_length max_sequence_length min_length model_type neftune_noise_alpha
    no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions
    output_hidden_states output_scores pad_token_id pooler_act pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_output_size pooler_size_per_head
    pooler_type prefix pretraining_tp problem_type remove_invalid_values reorder_and_upcast_attn
    repetition_penalty resid_pdrop return_dict return_dict_in_generate sep_token_id
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class
    tokenizer_model_max_length tokenizer_padding_side top_k top_p torch_dtype torchscript
    transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed unsloth_version
    use_bfloat16 use_cache use_return_dict
    """.split()
)
# What would change outputs has to have one of these values, or to be left out.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, []),
    "quantization_config": (),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
}


class Config:
    """The settings of a checkpoint.

    Args:
        file: where they stand, for messages.
        values: the object of JSON.

    Raises:
        DataError: from every method, for a value that is not what it has to be.
    """

    def __init__(self, file: Path, values: Mapping[str, Any]) -> None:
        self.file = file
        self.values = values
        self._asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """A value of any type; `default` where it is missing or null."""
        self._asked.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, lowest: int = 1) -> int:
        """A whole number from `lowest` to `LARGEST_SIZE`."""
        value = self.get(key, default)
        fits = isinstance(value, int) and not isinstance(value, bool)
        if not fits or not lowest <= value <= LARGEST_SIZE:
            raise self.wrong(key, value, f"a whole number from {lowest} to {LARGEST_SIZE:,}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.get(key, default)
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not 0 < value <= sys.float_info.max:  # whole numbers may have any digits
            raise self.wrong(key, value, f"a positive number up to {sys.float_info.max:.1e}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def choice(self, key: str, default: str, meanings: Mapping[str, Value]) -> Value:
        """What one of several names stands for."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in meanings:
            raise self.wrong(key, value, f"one of {', '.join(sorted(meanings))}")
        return meanings[value]

    def must_be(self, key: str, *allowed: Any) -> None:
        """See that a setting has a value that is known, is null or is left out."""
        value = self.get(key)
        if value is not None and value not in allowed:
            kinds = " or ".join(shown(one) if one else json.dumps(one) for one in allowed)
            raise self.wrong(key, value, kinds or "none, for what it asks for is not known here")

    def finish(self, without_effect: Iterable[str] = ()) -> None:
        """See that nothing is left that could change an output."""
        for key, allowed in NEUTRAL.items():
            self.must_be(key, *allowed)
        known = self._asked | WITHOUT_EFFECT | set(without_effect)
        for key in self.values:
            if key not in known and self.values[key] is not None:
                raise DataError(
                    f"{self.file} has the setting {key!r} ({shown(self.values[key])}), which is "
                    f"not known of the family {self.values.get('model_type')}: if outputs do not "
                    "depend on it, remove it"
                )

    def wrong(self, key: str, value: object, right: str) -> DataError:
        """The error to raise for a value."""
        given = "missing" if value is None else shown(value)
        return DataError(f"{self.file}: {key} is {given}; what is known here is {right}")
