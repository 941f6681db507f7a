"""The network of network.py as a language model of transformers, with `generate`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from supernet.export.template.decoder import State
from supernet.export.template.hf_config import NasConfig
from supernet.export.template.language_model import Network


class Remembered:
    """What decoding carries on, in place of a cache of keys and values; `length` tokens read."""

    is_compileable = False

    def __init__(self, state: State, length: int) -> None:
        self.state, self.length = state, length

    def get_seq_length(self, layer: int = 0) -> int:
        """Tokens that were read."""
        return self.length

    def reorder_cache(self, rows: Tensor) -> None:
        """Go on with these rows of the batch."""
        self.state = self.state.rows(rows)


class NasForCausalLM(PreTrainedModel, GenerationMixin):
    """A decoder; use `generate` to go on with a text, which begins with the begin mark."""

    config_class = NasConfig
    main_input_name = "input_ids"

    def __init__(self, config: NasConfig) -> None:
        super().__init__(config)
        self.network = Network(config.description)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """All weights are in the file."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # `Remembered` takes its place

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Remembered | None = None,
        attention_mask: Tensor | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Only the tokens that were not read yet."""
        start = 0 if past_key_values is None else past_key_values.get_seq_length()
        return {
            "input_ids": input_ids[:, start:],
            "past_key_values": past_key_values,
            "known_words_only": True,
            "attention_mask": attention_mask,
        }

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Remembered | None = None,
        labels: Tensor | None = None,
        known_words_only: bool = False,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Logits ``(B, N, V)`` of what follows each token; with labels also the loss.

        The rows of a batch are equally long. Labels are the tokens themselves, -100 where nothing
        is to be predicted.
        """
        if past_key_values is None and attention_mask is not None and not attention_mask.all():
            raise ValueError("the rows of a batch must be equally long: no padding in front")
        length = 0 if past_key_values is None else past_key_values.length
        state = self.network.start() if past_key_values is None else past_key_values.state
        if self.network.memory_length:
            logits, state = self.read_in_segments(input_ids, state)
        else:
            logits, state = self.network.step(input_ids, state)
        if known_words_only:
            # Tokens that the tokenizer does not know take no part in probabilities.
            logits[..., self.network.num_words :] = -float("inf")
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        past = Remembered(state, length + input_ids.shape[1])
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)

    def read_in_segments(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits and state after texts of any length; a full segment becomes memory."""
        parts = []
        while tokens.shape[1]:
            if state.position == self.network.max_length:
                state = state.next_segment()
            room = self.network.max_length - state.position
            logits, state = self.network.step(tokens[:, :room], state)
            parts.append(logits)
            tokens = tokens[:, room:]
        return torch.cat(parts, dim=1), state
