"""The network of network.py as a language model of transformers, with `generate`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from supernet.export.template.decoder import State
from supernet.export.template.hf_config import NasConfig, refuse
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


class NasModel(PreTrainedModel):
    """The decoder without its output layer."""

    config_class = NasConfig
    main_input_name = "input_ids"

    def __init__(self, config: NasConfig) -> None:
        super().__init__(config)
        self.network = Network(config.description)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """All weights are in the file."""

    def get_input_embeddings(self) -> nn.Module:
        """The table of its tokens."""
        return self.network.embedding

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Remembered | None = None,
        **given: Any,
    ) -> BaseModelOutputWithPast:
        """States ``(B, N, D)`` of each token, see `NasForCausalLM.forward`."""
        states, past = self.read(input_ids, attention_mask, past_key_values, given)
        return BaseModelOutputWithPast(last_hidden_state=states, past_key_values=past)

    def read(
        self,
        tokens: Tensor,
        mask: Tensor | None,
        past: Remembered | None,
        given: dict[str, Any],
    ) -> tuple[Tensor, Remembered | None]:
        """States of tokens, and what is carried on; a full segment becomes memory.

        Rows may be padded at their end, which nothing before it sees; nothing is carried on then.
        """
        length = 0 if past is None else past.length
        refuse(given, length)
        padded = mask is not None and not mask.all()
        if mask is not None and padded:
            rises = mask.dim() != 2 or bool((mask[:, 1:] > mask[:, :-1]).any())
            if rises or past is not None:
                raise ValueError("padding stands at the end of rows, and nothing goes on behind it")
        state = self.network.start() if past is None else past.state
        parts = [tokens]
        if self.network.memory_length:
            room = self.network.max_length - state.position
            parts = [tokens[:, :room], *tokens[:, room:].split(self.network.max_length, dim=1)]
        found = []
        for part in parts:
            if part.shape[1]:
                if self.network.memory_length and state.position == self.network.max_length:
                    state = state.next_segment()
                x, state = self.network.read(part, state)
                found.append(x)
        read = None if padded else Remembered(state, length + tokens.shape[1])
        return torch.cat(found, dim=1), read


class NasForCausalLM(NasModel, GenerationMixin):
    """A decoder; use `generate` to go on with a text, which begins with the begin mark."""

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
        if attention_mask is not None and not attention_mask.all():
            raise ValueError("the rows of a batch that is gone on with must be equally long")
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
        **given: Any,
    ) -> CausalLMOutputWithPast:
        """Logits ``(B, N, V)`` of what follows each token; with labels also the loss.

        The rows of a batch are equally long, or padded at their end. Labels are the tokens
        themselves, -100 where nothing is to be predicted.
        """
        states, past = self.read(input_ids, attention_mask, past_key_values, given)
        logits = self.network.tell(states)
        if known_words_only:
            # Tokens that the tokenizer does not know take no part in probabilities.
            logits[..., self.network.num_words :] = -float("inf")
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)
