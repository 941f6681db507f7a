"""A network of ours as a model of fairseq's: trained by `fairseq-train`, decoded with its state.

fairseq numbers <s> 0 and <pad> 1, here it is the other way round; and it begins a translation
with </s>, here with <s>. Both are changed on the way in and out, so that the weights are the same.
Sources are moved to the left of their padding, because positions count from there.

Shapes: B rows, M source positions, N target positions, R rows after beams, V target vocabulary.
"""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

import torch
from fairseq.models import (
    FairseqEncoder,
    FairseqEncoderDecoderModel,
    FairseqIncrementalDecoder,
    register_model,
    register_model_architecture,
)
from torch import Tensor

from nas.fairseq.checkpoint import ARCH, SAFE_GLOBALS, packed_blueprint, read_blueprint
from search_spaces.errors import DataError
from search_spaces.settings import TokenInput
from supernet.blueprint import Blueprint
from supernet.building import build_network
from supernet.data.tokenizer import BOS, EOS
from supernet.decoding_state import DecodingState
from supernet.extraction import StandAlone

# fairseq's own commands read its checkpoints with torch.load, which refuses these classes.
torch.serialization.add_safe_globals(list(SAFE_GLOBALS))

FAIRSEQ_PAD = 1
STATE = "decoding_state"


class NasEncoder(FairseqEncoder):  # type: ignore[misc]
    """Reads sources; what it returns is all that the decoder's cross-attention needs of them."""

    def __init__(self, dictionary: Any, network: StandAlone) -> None:
        super().__init__(dictionary)
        self._network = (network,)  # not a module of this one: the model holds it

    def forward(self, src_tokens: Tensor, src_lengths: Any = None, **_: Any) -> dict[str, Any]:
        """Sources ``(B, M)``, padded on either side → what is kept of them for each layer."""
        return {"memories": self._network[0].start(source_tokens(src_tokens)).memories}

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: Tensor) -> dict[str, Any]:
        """What is kept of the sources of these rows."""
        kept = [
            None if memory is None else tuple(part.index_select(0, new_order) for part in memory)
            for memory in encoder_out["memories"]
        ]
        return {"memories": tuple(kept)}

    def max_positions(self) -> int:
        """Most tokens of a source, end mark included."""
        return self._network[0].network.settings.max_length


class NasDecoder(FairseqIncrementalDecoder):  # type: ignore[misc]
    """Writes translations; between two tokens fairseq keeps its state and reorders it."""

    def __init__(self, dictionary: Any, network: StandAlone) -> None:
        super().__init__(dictionary)
        self._network = (network,)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, Any] | None = None,
        incremental_state: dict[str, Any] | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Target tokens ``(R, N)`` from the first on → logits ``(R, N, V)``.

        With an incremental state only the tokens that it has not seen are decoded, and the logits
        are of those alone.
        """
        assert encoder_out is not None
        network, tokens_RN = self._network[0], target_tokens(prev_output_tokens)
        state = self.get_incremental_state(incremental_state, STATE)
        if state is None:
            layers = len(encoder_out["memories"])
            state = DecodingState(network.architecture, 0, None, (None,) * layers)
        state = replace(state, memories=encoder_out["memories"])
        logits_RNV, state = network.step(tokens_RN[:, state.position :], state)
        self.set_incremental_state(incremental_state, STATE, replace(state, memories=()))
        return their_order(logits_RNV)[..., : len(self.dictionary)], None

    def reorder_incremental_state(
        self, incremental_state: dict[str, Any], new_order: Tensor
    ) -> None:
        """Keep the states of these rows: beams that go on."""
        state = self.get_incremental_state(incremental_state, STATE)
        if state is not None:
            self.set_incremental_state(incremental_state, STATE, state.reorder(new_order))

    def max_positions(self) -> int:
        """Most tokens of a translation, end mark included."""
        return self._network[0].network.settings.max_length


@register_model(ARCH)
class NasTransformer(FairseqEncoderDecoderModel):  # type: ignore[misc]
    """A translation network, given by ``--nas-architecture``."""

    def __init__(self, encoder: NasEncoder, decoder: NasDecoder, network: StandAlone) -> None:
        super().__init__(encoder, decoder)
        self.network = network.network

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        """Options of `fairseq-train`."""
        parser.add_argument(
            "--nas-architecture",
            metavar="FILE",
            help="architecture.json of an export; or a network as JSON, as HAT's YAML or as a line "
            "of text, together with --nas-space",
        )
        parser.add_argument(
            "--nas-space", metavar="NAME|FILE", help="the space that the network belongs to"
        )
        parser.add_argument("--dropout", type=float, metavar="D", help="dropout probability")

    @classmethod
    def build_model(cls, args: Any, task: Any) -> NasTransformer:
        """Build the network for the dictionaries of a task.

        Raises:
            NasError: for a network or dictionaries that do not fit; the message says which.
        """
        given = getattr(args, "nas_architecture", None)
        if given is None:
            raise DataError(f"--arch {ARCH} needs --nas-architecture")
        blueprint = read_blueprint(given, getattr(args, "nas_space", None))
        # Checkpoints keep the arguments: with what the files say, they need the files no more.
        args.nas_architecture, args.nas_space = packed_blueprint(blueprint), None
        check_dictionaries(blueprint, task.source_dictionary, task.target_dictionary)
        network = build_network(
            blueprint.settings, blueprint.task, blueprint.architecture, args.dropout
        )
        return cls(
            NasEncoder(task.source_dictionary, network),
            NasDecoder(task.target_dictionary, network),
            network,
        )


@register_model_architecture(ARCH, ARCH)  # type: ignore[untyped-decorator]
def defaults(args: Any) -> None:
    """What is not given."""
    if getattr(args, "dropout", None) is None:
        args.dropout = 0.1


def check_dictionaries(blueprint: Blueprint, source: Any, target: Any) -> None:
    """See that a network can read and write the symbols of two dictionaries of fairseq's.

    Raises:
        DataError: when marks have other numbers, a dictionary is larger than the network's
            vocabulary, or the network shares embeddings and they differ.
    """
    shape = blueprint.settings.input
    assert isinstance(shape, TokenInput)
    sizes = (shape.vocab_size, shape.target_vocab_size or shape.vocab_size)
    for side, dictionary, size in zip(("source", "target"), (source, target), sizes, strict=True):
        marks = (dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.unk())
        if marks != (0, 1, 2, 3):
            raise DataError(f"the {side} dictionary numbers its marks {marks}, not 0 to 3")
        if len(dictionary) > size:
            raise DataError(
                f"the {side} dictionary has {len(dictionary)} symbols, but the vocabulary of the "
                f"network {size}: it belongs to other data, or vocab_size of the space is too small"
            )
    if shape.share_embeddings and source != target:
        raise DataError(
            "the network shares embeddings between source and target, but the dictionaries differ: "
            "run fairseq-preprocess with --joined-dictionary"
        )


def source_tokens(tokens_BM: Tensor) -> Tensor:
    """Sources ``(B, M)`` in our numbers, with all padding behind them."""
    padding_BM = tokens_BM == FAIRSEQ_PAD
    order_BM = padding_BM.to(torch.int8).argsort(dim=1, stable=True)
    return _renumbered(tokens_BM.gather(1, order_BM))


def target_tokens(tokens_RN: Tensor) -> Tensor:
    """Target tokens ``(R, N)`` in our numbers; the </s> that they begin with becomes <s>."""
    tokens_RN = _renumbered(tokens_RN)
    first_R1 = tokens_RN[:, :1]
    return torch.cat((first_R1.masked_fill(first_R1 == EOS, BOS), tokens_RN[:, 1:]), dim=1)


def their_order(logits_RNV: Tensor) -> Tensor:
    """Logits with the columns of <s> and <pad> swapped, in place: only fairseq sees them after."""
    logits_RNV[..., :2] = logits_RNV[..., :2].flip(-1)
    return logits_RNV


def _renumbered(tokens: Tensor) -> Tensor:
    return torch.where(tokens < EOS, 1 - tokens, tokens)
