"""What omnidirectional layers take from which layer: shares of attention and of pooling.

An omni layer attends over the states of several layers at once and then keeps, for each position
and feature, the largest value among them. How much each of those layers contributes to either step
is measured here while a network reads its validation examples.

Source: Tay et al., OmniNet (2021), section 4.6 and appendix B. Differences: shares are means over
all real positions and examples, where the paper shows single examples; its figures are the maps.

Shapes: B batch, H heads, N states (positions times P; patches in maps), M keys, P layers looked at,
n positions, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from search_spaces.architecture import Architecture, omni_spans
from search_spaces.settings import ImageInput
from supernet.attention.base import AttentionKernel
from supernet.attention.omni import LinformerKernel
from supernet.attention.weights import key_weights, pooled_shares, source_of, source_weights
from supernet.blocks import ElasticEncoderBlock
from supernet.decoder import ElasticDecoderBlock
from supernet.extraction import Supernet
from supernet.sequence_models import SequenceModel
from supernet.tasks.base import Task

Floats = NDArray[np.float64]
StackName = Literal["encoder", "decoder"]

MOST_STATES = 1024  # of one example whose map is kept


@dataclass(frozen=True, eq=False, slots=True)
class LayerShares:
    """What one omni layer takes from the layers it looks at.

    Attributes:
        stack: it belongs to.
        layer: its number, from 1.
        sources: the outputs it looks at: 0 for the embeddings, otherwise a layer's number.
        attention: by head, share of the attention that states of one source (second axis) pay
            to those of another (third axis, which sums to 1).
        pooling: share of the features that the pooling keeps from each source; sums to 1.
    """

    stack: StackName
    layer: int
    sources: tuple[int, ...]
    attention: Floats
    pooling: Floats


@dataclass(frozen=True, eq=False, slots=True)
class PositionMap:
    """The same for one image, patch by patch; a class token has no place in it.

    Attributes:
        example: its number in the validation split, from 0.
        layer: of the encoder.
        attention: share of the attention that goes to each patch of each source, mean over
            heads; the query is the class token where there is one, otherwise the mean of all.
        pooling: share of the features of a patch that come from each source.
    """

    example: int
    layer: int
    attention: Floats
    pooling: Floats


def omni_layers(
    architecture: Architecture, max_span: int
) -> list[tuple[StackName, int, tuple[int, ...]]]:
    """Stack, number and sources of every omni layer that looks at more than one layer's output."""
    kinds: list[tuple[StackName, list[Any]]] = []
    if architecture.encoder is not None:
        kinds.append(("encoder", [layer.attention for layer in architecture.encoder.layers]))
    if architecture.decoder is not None:
        kinds.append(("decoder", [layer.self_attention for layer in architecture.decoder.layers]))
    return [
        (stack, number, tuple(range(number - span, number)))
        for stack, names in kinds
        for number, span in enumerate(omni_spans(names, max_span), start=1)
        if span > 1
    ]


@torch.inference_mode()
def omni_shares(
    task: Task[Any, Any], model: Supernet, architecture: Architecture, maps: int = 0
) -> tuple[list[LayerShares], list[PositionMap]]:
    """Measure the omni layers of a network on the validation split, on the CPU.

    Of what a language model remembers of earlier segments nothing is counted: shares are those of
    the attention within a segment.

    Args:
        task: with the examples to read; see `Task.first_valid`.
        model: the weights.
        architecture: the network.
        maps: of so many examples from the first on, maps of the omni layers of an encoder that
            reads images.

    Returns:
        A value for each of `omni_layers`, and the maps.
    """
    with ExitStack() as stack:
        real = _RealTargets()
        watched = [
            stack.enter_context(_watched(model, name, number, sources, maps, real))
            for name, number, sources in omni_layers(architecture, model.settings.omni_span)
        ]
        if isinstance(model, SequenceModel):
            stack.enter_context(real.followed(model))
        stack.callback(model.train, model.training)
        model.eval()
        for _ in task.evaluation(model, architecture, task.valid, "cpu"):
            pass
    return [one.shares() for one in watched], [found for one in watched for found in one.maps]


class _RealTargets:
    """Which of the tokens that a decoder reads at this moment are not padding."""

    def __init__(self) -> None:
        self.mask_Bn: Tensor | None = None

    @contextmanager
    def followed(self, model: SequenceModel) -> Iterator[None]:
        """Keep up with what the model reads."""
        read = model._read

        def noting(tokens_BN: Tensor, *arguments: Any, **options: Any) -> Any:
            self.mask_Bn = tokens_BN != 0
            return read(tokens_BN, *arguments, **options)

        with _replaced(model, "_read", noting):
            yield


class _Layer:
    """Adds up what is seen of one omni layer."""

    def __init__(
        self, stack: StackName, number: int, sources: tuple[int, ...], maps: int, real: _RealTargets
    ) -> None:
        self._place = stack, number, sources
        self._real = real
        self._most_maps = maps
        self._first_patch = 0
        self._attention: Tensor | float = 0.0
        self._pooling: Tensor | float = 0.0
        self._rows = 0.0
        self._positions = 0.0
        self._looks: list[Tensor] = []  # maps of attention whose pooling is yet to come
        self.maps: list[PositionMap] = []

    @property
    def span(self) -> int:
        """How many layers it looks at."""
        return len(self._place[2])

    def shares(self) -> LayerShares:
        """The means of all that was seen."""
        attention, pooling = torch.as_tensor(self._attention), torch.as_tensor(self._pooling)
        return LayerShares(
            *self._place,
            (attention / self._rows).numpy(),
            (pooling / self._positions).numpy(),
        )

    def attended(self, weights_BHNP: Tensor, mask_BM: Tensor | None) -> None:
        """Add the weights of queries."""
        weights_BHnPP = weights_BHNP.double().unflatten(2, (-1, self.span))
        real_Bn = self._real_positions(weights_BHnPP, mask_BM)
        self._attention = self._attention + torch.einsum("bhnqp,bn->hqp", weights_BHnPP, real_Bn)
        self._rows += float(real_Bn.sum())

    def looked(self, kernel: AttentionKernel, q: Tensor, k: Tensor, class_token: bool) -> None:
        """Keep maps of the first examples."""
        missing = self._most_maps - len(self.maps)
        if missing <= 0 or k.shape[2] > MOST_STATES:
            return
        weights_BHNM = key_weights(kernel, q[:missing], k[:missing], None, self.span).double()
        weights_BHNM = weights_BHNM.abs() if isinstance(kernel, LinformerKernel) else weights_BHNM
        self._first_patch = int(class_token)
        queries = weights_BHNM[:, :, : self.span] if class_token else weights_BHNM
        weights_BM = queries.mean(dim=(1, 2))
        weights_BM = weights_BM / weights_BM.sum(dim=1, keepdim=True)
        self._looks = list(weights_BM.unflatten(1, (-1, self.span)).mT)

    def pooled(self, states_BND: Tensor, mask_BM: Tensor | None) -> None:
        """Add what is kept of the layer's outputs before they are pooled."""
        shares_BnP = pooled_shares(states_BND, self.span)
        real_Bn = self._real_positions(shares_BnP.transpose(1, 2)[:, :, :, None], mask_BM)
        self._pooling = self._pooling + torch.einsum("bnp,bn->p", shares_BnP, real_Bn)
        self._positions += float(real_Bn.sum())
        for look_PN, shares_nP in zip(self._looks, shares_BnP, strict=False):
            maps = [part[:, self._first_patch :].numpy() for part in (look_PN, shares_nP.mT)]
            self.maps.append(PositionMap(len(self.maps), self._place[1], *maps))
        self._looks = []

    def _real_positions(self, like_BXn: Tensor, mask_BM: Tensor | None) -> Tensor:
        """1 at real positions and 0 at padding, ``(B, n)``; like the given ``(B, ., n, ...)``."""
        if self._place[0] == "decoder":
            assert self._real.mask_Bn is not None
            return self._real.mask_Bn.double()
        if mask_BM is None:
            return torch.ones(like_BXn.shape[0], like_BXn.shape[2], dtype=torch.float64)
        return mask_BM[:, :: self.span].double()


@contextmanager
def _watched(
    model: Supernet,
    stack: StackName,
    number: int,
    sources: tuple[int, ...],
    maps: int,
    real: _RealTargets,
) -> Iterator[_Layer]:
    images = isinstance(model.settings.input, ImageInput)
    layer = _Layer(stack, number, sources, maps if images else 0, real)
    block = getattr(model, stack).blocks[number - 1]
    if stack == "encoder":
        with _encoder_watched(block, layer, model.settings.class_token):
            yield layer
    else:
        with _decoder_watched(block, layer):
            yield layer


@contextmanager
def _encoder_watched(
    block: ElasticEncoderBlock, layer: _Layer, class_token: bool
) -> Iterator[None]:
    kernel = block.attention.kernels["omni"]
    assert isinstance(kernel, AttentionKernel)
    forward = kernel.forward

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        mask_BM = options["key_mask_BM"]
        with _replaced(kernel, "forward", forward):
            layer.attended(source_weights(kernel, q, k, mask_BM, layer.span), mask_BM)
            layer.looked(kernel, q, k, class_token)
        return forward(q, k, v, **options)

    def pool(_: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        layer.pooled(output, arguments[2])

    hook = block.register_forward_hook(pool)
    try:
        with _replaced(kernel, "forward", attend):
            yield
    finally:
        hook.remove()


@contextmanager
def _decoder_watched(block: ElasticDecoderBlock, layer: _Layer) -> Iterator[None]:
    kernel = block.self_attention.kernels["omni"]
    assert isinstance(kernel, AttentionKernel)
    causal = kernel.causal

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        probe = source_of(k, layer.span)
        mask_BN = options.get("key_mask_BN")
        weights, _ = causal(q, k, probe, key_mask_BN=mask_BN, span=layer.span)
        layer.attended(weights, None)
        return causal(q, k, v, **options)

    def pool(_: nn.Module, __: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
        layer.pooled(output[0], None)

    hook = block.register_forward_hook(pool)
    try:
        with _replaced(kernel, "causal", attend):
            yield
    finally:
        hook.remove()


@contextmanager
def _replaced(owner: Any, name: str, function: Any) -> Iterator[None]:
    """Let an object do something else for a while; what its class does comes back."""
    before = vars(owner).get(name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        delattr(owner, name)
        if before is not None:
            setattr(owner, name, before)
