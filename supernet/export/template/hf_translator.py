"""The network of network.py as a translation model of transformers, with `generate`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from supernet.export.template.decoder import BOS, EOS, PAD, State
from supernet.export.template.hf_config import NasConfig, refuse
from supernet.export.template.translator import Network


class Remembered:
    """What decoding carries on, in place of a cache of keys and values."""

    is_compileable = False

    def __init__(self, state: State) -> None:
        self.state = state

    def get_seq_length(self, layer: int = 0) -> int:
        """Target positions that were read."""
        return self.state.position

    def reorder_cache(self, rows: Tensor) -> None:
        """Go on with these rows of the batch."""
        self.state = self.state.rows(rows)


class Encoder(nn.Module):
    """The network's encoder, as `generate` calls it."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.encode = network.encode

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> BaseModelOutput:
        """Sources ``(B, M)``, padded at their end -> the encoder's output."""
        if attention_mask is not None:
            input_ids = input_ids.masked_fill(attention_mask == 0, PAD)
        return BaseModelOutput(last_hidden_state=self.encode(input_ids))


class LengthLimit(LogitsProcessor):
    """Only the end mark may follow where a translation is as long as its source allows."""

    def __init__(self, source_lengths: Tensor, longest: int) -> None:
        limits = (1.2 * source_lengths).long() + 10  # end marks included, on both sides
        self.limits = limits.clamp(max=longest)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores ``(rows, V)``, of which several may belong to one source (beams)."""
        limits = self.limits.to(scores.device).repeat_interleave(len(scores) // len(self.limits))
        others = torch.arange(scores.shape[1], device=scores.device) != EOS
        full = input_ids.shape[1] >= limits
        return scores.masked_fill(full[:, None] & others, -torch.inf)


class NasForSeq2SeqLM(PreTrainedModel, GenerationMixin):
    """Encoder and decoder; use `generate` for translations."""

    config_class = NasConfig
    main_input_name = "input_ids"

    def __init__(self, config: NasConfig) -> None:
        super().__init__(config)
        self.network = Network(config.description)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """All weights are in the file."""

    def get_encoder(self, modality: str | None = None) -> Encoder:
        """The encoder; it holds no parameters of its own."""
        return Encoder(self.network)

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        **rest: Any,
    ) -> Any:
        """As transformers does; a translation is at most 1.2 times its source plus 10 long."""
        source, mask = rest.get("input_ids", inputs), rest.get("attention_mask")
        if source is not None:
            real = source != PAD if mask is None else mask != 0
            rest["attention_mask"] = real.long()
            limit = LengthLimit(real.sum(dim=1), self.network.max_length)
            logits_processor = LogitsProcessorList([*(logits_processor or []), limit])
        return super().generate(
            inputs, generation_config, logits_processor=logits_processor, **rest
        )

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # `Remembered` takes its place

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Remembered | None = None,
        attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Only the tokens that were not read yet."""
        start = 0 if past_key_values is None else past_key_values.get_seq_length()
        return {
            "decoder_input_ids": input_ids[:, start:],
            "past_key_values": past_key_values,
            "known_words_only": True,
            "attention_mask": attention_mask,
            "encoder_outputs": encoder_outputs,
        }

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: Remembered | None = None,
        labels: Tensor | None = None,
        known_words_only: bool = False,
        **given: Any,
    ) -> Seq2SeqLMOutput:
        """Logits of what follows each target token; with labels also the loss.

        Sources ``(B, M)`` end with the end mark and are padded behind it. Labels ``(B, N)`` are
        targets that end with the end mark, -100 where nothing is to be predicted.
        """
        refuse(given)
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("give decoder_input_ids, or labels from which they are made")
            decoder_input_ids = F.pad(labels[:, :-1], (1, 0), value=BOS).clamp(min=PAD)
        if past_key_values is None:
            if encoder_outputs is None:
                encoder_outputs = self.get_encoder()(input_ids, attention_mask)
            encoded = encoder_outputs[0]
            if attention_mask is not None:
                real = attention_mask != 0
            elif input_ids is not None:
                real = input_ids != PAD
            else:
                raise ValueError("give the sources' attention_mask along with encoder_outputs")
            state = self.network.begin(encoded, real)
        else:
            state = past_key_values.state
        logits, state = self.network.step(decoder_input_ids, state)
        if known_words_only:
            # Tokens that the tokenizer does not know take no part in probabilities.
            logits[..., self.network.num_words :] = -float("inf")
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Seq2SeqLMOutput(loss=loss, logits=logits, past_key_values=Remembered(state))
