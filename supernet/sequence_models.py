"""Translation and language models: encoder and decoder, or a decoder alone.

Both decode whole sequences and single tokens with one call: `step` takes any number of new tokens
and what the last call returned, so that training and decoding cannot differ. A supernet and a
stand-alone network are one class, built from two plans.

In translation token 0 is padding, behind the end of sources and targets: positions are counted from
the first column. In a language model it is a token like others, for some vocabularies of
checkpoints have it: what is padding is told by places (the end of the text, a mask), and only
contexts of a model with a memory have 0 in front.

Shapes: B batch, N new target positions, M source positions, C positions of a context, D width,
V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from search_spaces.settings import ModelSettings, TokenInput
from supernet.decoder import ElasticDecoder
from supernet.decoding_state import DecodingState
from supernet.encoder import ElasticEncoder
from supernet.layers import (
    ElasticEmbedding,
    ElasticLinear,
    EmbeddingExtras,
    ScaledDropout,
    sinusoidal_positions,
)
from supernet.plan import DecoderPlan, StackPlan, decoder_of, encoder_of
from supernet.shared import shared
from supernet.slices import multiplied, used


class Positions(nn.Module):
    """Scales token embeddings by sqrt(width), unless the settings do not, and adds positions.

    Source: Attention Is All You Need, section 3.4. Tables start with a spread of 1 / sqrt(largest
    width), as output layers need it, so that embeddings start about as large as positions. With an
    elastic width the factor is that of the width in use, as in HAT.
    """

    def __init__(self, settings: ModelSettings, max_dim: int, dropout: float) -> None:
        super().__init__()
        self.settings = settings
        self.learned: nn.Parameter | None = None
        if settings.positions == "learned":
            self.learned = nn.Parameter(torch.randn(settings.max_length, max_dim) * 0.02)
        self.extras = EmbeddingExtras(settings, max_dim)
        self.dropout = ScaledDropout(dropout, max_dim)

    def forward(self, x_BND: Tensor, start: int = 0) -> Tensor:
        """Embeddings of the positions from `start` on, ``(B, N, D)`` → ``(B, N, D)``.

        Raises:
            UsageError: for positions beyond the model's `max_length`.
        """
        length, width = start + x_BND.shape[1], x_BND.shape[2]
        if length > self.settings.max_length:
            raise UsageError(
                f"the text has {length} tokens, but the model's max_length is "
                f"{self.settings.max_length}: shorten the text or raise max_length in the space's "
                "[model] table"
            )
        if self.settings.scale_embeddings:
            x_BND = x_BND * width**0.5
        if self.learned is not None:
            x_BND = x_BND + used(self.learned, length, width)[start:]
        elif self.settings.positions == "sinusoidal":
            table_ND = shared(sinusoidal_positions, length - start, width, x_BND.device, start)
            x_BND = x_BND + table_ND.to(x_BND.dtype)
        return self.dropout(self.extras(x_BND))  # type: ignore[no-any-return]


class SequenceModel(nn.Module):
    """What models that write tokens have in common: a decoder that ends in its own embeddings.

    The last table holds the target's embeddings, which are the output layer's weights too, unless
    the settings ask for an output layer of its own.
    """

    def __init__(
        self,
        settings: ModelSettings,
        plan: DecoderPlan,
        vocab_size: int,
        tables: Sequence[tuple[int, int]],
        dropout: float,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.vocab_size = vocab_size
        self.tables = nn.ModuleList(ElasticEmbedding(rows, width) for rows, width in tables)
        self.output: ElasticLinear | None = None
        if not settings.tied_output:
            self.output = ElasticLinear(plan.embed_dim, vocab_size, bias=False)
        self.decoder_positions = Positions(settings, plan.embed_dim, dropout)
        self.decoder = ElasticDecoder(settings, plan, dropout)

    def step(
        self, tokens_BN: Tensor, state: DecodingState, mask_BN: Tensor | None = None
    ) -> tuple[Tensor, DecodingState]:
        """New target tokens ``(B, N)`` → logits of what follows each, ``(B, N, V)``, and the state.

        B may be a multiple of the number of sources, neighbouring rows sharing one.

        Args:
            tokens_BN: tokens; positions are counted from the first column, padding included.
            state: what `start` or the last call returned.
            mask_BN: True at tokens; None when there is no padding before one. Padding may stand
                in front at the start of a text, and behind at its end.

        Raises:
            UsageError: beyond the model's `max_length`.
        """
        x_BND, state = self._read(tokens_BN, state, mask_BN)
        return self.tell(x_BND), state

    def prefill(self, tokens_BN: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """As `step`, with the logits of what follows the last token alone, ``(B, 1, V)``."""
        x_BND, state = self._read(tokens_BN, state)
        return self.tell(x_BND[:, -1:]), state

    def tell(self, x_BND: Tensor) -> Tensor:
        """The output layer: states ``(…, D)`` → logits of what follows each, ``(…, V)``."""
        if self.output is not None:
            logits: Tensor = self.output(x_BND, self.vocab_size)
            return logits
        table = self.tables[-1]
        assert isinstance(table, ElasticEmbedding)
        return F.linear(x_BND, multiplied(table.weight, self.vocab_size, x_BND.shape[-1]))

    def _read(
        self, tokens_BN: Tensor, state: DecodingState, mask_BN: Tensor | None = None
    ) -> tuple[Tensor, DecodingState]:
        """As `step`, but with the decoder's output ``(B, N, D)``; the mask is True at tokens."""
        decoder, position = decoder_of(state.architecture), state.position
        x_BND = self.tables[-1](tokens_BN, decoder.embed_dim)
        x_BND = self.decoder_positions(x_BND, position)
        x_BND, states = self.decoder(
            x_BND, decoder, state.memories, state.states, position, mask_BN
        )
        return x_BND, replace(state, position=position + tokens_BN.shape[1], states=states)


class TranslationModel(SequenceModel):
    """An encoder and a decoder over tokens.

    Source, target and output layer share one table, as wide as the wider stack, where the settings
    say so; else there are two, the target's serving the output layer.
    """

    def __init__(
        self,
        settings: ModelSettings,
        encoder_plan: StackPlan,
        decoder_plan: DecoderPlan,
        dropout: float = 0.0,
    ) -> None:
        source = _tokens(settings)
        target_vocab = source.target_vocab_size or source.vocab_size
        dims = (encoder_plan.embed_dim, decoder_plan.embed_dim)
        tables = [(source.vocab_size, dims[0]), (target_vocab, dims[1])]
        if source.share_embeddings:
            tables = [(max(source.vocab_size, target_vocab), max(dims))]
        super().__init__(settings, decoder_plan, target_vocab, tables, dropout)
        self.encoder_positions = Positions(settings, encoder_plan.embed_dim, dropout)
        self.encoder = ElasticEncoder(settings, encoder_plan, dropout)

    def forward(self, source_BM: Tensor, target_BN: Tensor, architecture: Architecture) -> Tensor:
        """Logits ``(B, N, V)`` of the token after each target token.

        Args:
            source_BM: source tokens.
            target_BN: target tokens, from the start symbol on.
            architecture: the network.
        """
        return self.tell(self.read(source_BM, target_BN, architecture))

    def read(self, source_BM: Tensor, target_BN: Tensor, architecture: Architecture) -> Tensor:
        """As `forward`, without the output layer: ``(B, N, D)``."""
        return self._read(target_BN, self.start(source_BM, architecture))[0]

    def start(self, source_BM: Tensor, architecture: Architecture) -> DecodingState:
        """Encode sources ``(B, M)``: the state before the first target token."""
        encoder, decoder = encoder_of(architecture), decoder_of(architecture)
        mask_BM = source_BM != 0
        x_BMD = self.encoder_positions(self.tables[0](source_BM, encoder.embed_dim))
        count = max(layer.ende_connect or 1 for layer in decoder.layers)
        outputs = self.encoder.last_outputs(x_BMD, encoder, mask_BM, count)
        memories = self.decoder.memories(outputs, decoder, mask_BM)
        return DecodingState(architecture, 0, None, memories)


class LanguageModel(SequenceModel):
    """A decoder alone: every token is predicted from those before it.

    A network with a memory reads a text in segments and sees, besides the segment, the last
    `memory_length` positions before it. To go through a text, call `step` with one segment after
    the other and `DecodingState.next_segment` between them. To train on segments in any order,
    call the model with their contexts.
    """

    def __init__(self, settings: ModelSettings, plan: DecoderPlan, dropout: float = 0.0) -> None:
        vocab_size = _tokens(settings).vocab_size
        super().__init__(settings, plan, vocab_size, [(vocab_size, plan.embed_dim)], dropout)

    def forward(
        self,
        tokens_BN: Tensor,
        architecture: Architecture,
        context_BC: Tensor | None = None,
        mask_BN: Tensor | None = None,
    ) -> Tensor:
        """Tokens ``(B, N)`` → logits ``(B, N, V)`` of the token after each.

        Args:
            tokens_BN: a segment of the text.
            architecture: the network.
            context_BC: as for `start`.
            mask_BN: as for `step`.
        """
        return self.tell(self.read(tokens_BN, architecture, context_BC, mask_BN))

    def read(
        self,
        tokens_BN: Tensor,
        architecture: Architecture,
        context_BC: Tensor | None = None,
        mask_BN: Tensor | None = None,
    ) -> Tensor:
        """As `forward`, without the output layer: ``(B, N, D)``."""
        return self._read(tokens_BN, self.start(architecture, context_BC), mask_BN)[0]

    def start(self, architecture: Architecture, context_BC: Tensor | None = None) -> DecodingState:
        """The state before the first token of a segment.

        Args:
            architecture: the network.
            context_BC: the tokens before the segment, with 0 in front where the text begins. The
                last `memory_length` of them are read without gradient, from an empty memory; a
                network without a memory reads none.

        Source: Dai et al., "Transformer-XL" (2019), section 3.2. Its memory holds what the
        previous update computed. In a supernet the previous update trained another network, so we
        compute the memory anew, with the present weights, whose own context ends where it begins.

        Raises:
            UsageError: for a network with a memory in a model whose positions do not allow one.
        """
        decoder = decoder_of(architecture)
        state = DecodingState(architecture, 0, None, (None,) * len(decoder.layers))
        problem = self.settings.memory_problem() if decoder.memory_length else None
        if problem is not None:
            raise UsageError(problem)
        if context_BC is None or not decoder.memory_length or not context_BC.shape[1]:
            return state
        with torch.no_grad():
            remembered_BC = context_BC[:, -decoder.memory_length :]
            for part_BN in remembered_BC.split(self.settings.max_length, dim=1):
                state = self._read(part_BN, state, self._padded(part_BN))[1].next_segment()
        return state

    def _padded(self, context_BN: Tensor) -> Tensor | None:
        """The mask of a context; None where there is no padding, for it would be remembered.

        In training it is there in any case: whether it is needed is known on the device alone.
        """
        mask_BN = context_BN != 0
        if self.training:
            return mask_BN
        return None if mask_BN.is_meta or bool(mask_BN.all()) else mask_BN


def _tokens(settings: ModelSettings) -> TokenInput:
    assert isinstance(settings.input, TokenInput), "a model of texts needs tokens"
    return settings.input
