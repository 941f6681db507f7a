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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from search_spaces.architecture import Architecture
from search_spaces.omni import OmniLayer, OmniMap, StackName, omni_layers
from search_spaces.settings import ImageInput
from supernet.attention.base import AttentionKernel
from supernet.attention.omni import LinformerKernel
from supernet.attention.weights import key_weights, pooled_shares, source_of, source_weights
from supernet.blocks import ElasticEncoderBlock
from supernet.decoder import ElasticDecoderBlock
from supernet.extraction import Supernet
from supernet.loss import IGNORED
from supernet.sequence_models import SequenceModel
from supernet.tasks.base import Task

MOST_STATES = 1024  # of one example whose map is kept
DIGITS = 6  # what a share can tell


@torch.inference_mode()
def omni_shares(
    task: Task[Any, Any], model: Supernet, architecture: Architecture, maps: int = 0
) -> tuple[tuple[OmniLayer, ...], tuple[OmniMap, ...]]:
    """Measure the omni layers of a network on the validation split, on the CPU.

    Of what a language model remembers of earlier segments nothing is counted: shares are those of
    the attention within a segment.

    Args:
        task: with the examples to read; see `Task.with_valid`.
        model: the weights.
        architecture: the network.
        maps: of so many examples from the first on, maps of the omni layers of an encoder that
            reads images.

    Returns:
        A value for each of `omni_layers`, and the maps.
    """
    with ExitStack() as stack:
        watched = [
            stack.enter_context(_watched(model, architecture, name, number, sources, maps))
            for name, number, sources in omni_layers(architecture, model.settings.omni_span)
        ]
        targets = _Targets()
        if isinstance(model, SequenceModel):
            stack.enter_context(targets.followed(model))
        stack.callback(model.train, model.training)
        model.eval()
        for said in task.evaluation(model, architecture, task.valid, "cpu"):
            real_Bn = targets.real(said.labels)
            for one in watched:
                one.count(real_Bn)
    maps_of_all = (found for one in watched for found in one.maps)
    return tuple(one.shares() for one in watched), tuple(maps_of_all)


class _Targets:
    """The tokens that a decoder has read last."""

    def __init__(self) -> None:
        self._tokens_Bn: Tensor | None = None

    @contextmanager
    def followed(self, model: SequenceModel) -> Iterator[None]:
        """Keep up with what the model reads."""
        read = model._read

        def noting(tokens_BN: Tensor, *arguments: Any, **options: Any) -> Any:
            self._tokens_Bn = tokens_BN
            return read(tokens_BN, *arguments, **options)

        with _replaced(model, "_read", noting):
            yield

    def real(self, labels_P: Tensor) -> Tensor | None:
        """True where they are not padding, ``(B, n)``; None where no decoder reads.

        In language models 0 may be a word: padding is what stands behind the last other token and
        the last label of a row.
        """
        if self._tokens_Bn is None:
            return None
        tokens_Bn = self._tokens_Bn
        known_Bn = (tokens_Bn != 0) | (labels_P != IGNORED).view_as(tokens_Bn)
        return known_Bn.flip(1).cumsum(dim=1).flip(1) > 0


class _Layer:
    """Adds up what is seen of one omni layer."""

    def __init__(self, stack: StackName, number: int, sources: tuple[int, ...], maps: int) -> None:
        self._place = stack, number, sources
        self._most_maps = maps
        self._first_patch = 0
        self._attention: Tensor | float = 0.0
        self._pooling: Tensor | float = 0.0
        self._positions = 0.0
        self._weights_BHnPP = self._shares_BnP = torch.empty(0)  # of the last batch
        self._mask_Bn: Tensor | None = None
        self._looks: list[Tensor] = []  # maps of attention whose pooling is yet to come
        self.maps: list[OmniMap] = []

    @property
    def span(self) -> int:
        """How many layers it looks at."""
        return len(self._place[2])

    def shares(self) -> OmniLayer:
        """The means of all that was seen."""
        attention, pooling = torch.as_tensor(self._attention), torch.as_tensor(self._pooling)
        means = attention / self._positions, pooling / self._positions
        return OmniLayer(*self._place, *map(_plain, means))

    def attended(self, weights_BHNP: Tensor, mask_BM: Tensor | None) -> None:
        """Note the weights of queries."""
        self._weights_BHnPP = weights_BHNP.double().unflatten(2, (-1, self.span))
        self._mask_Bn = None if mask_BM is None else mask_BM[:, :: self.span]

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

    def pooled(self, states_BND: Tensor) -> None:
        """Note what is kept of the layer's outputs before they are pooled."""
        self._shares_BnP = pooled_shares(states_BND, self.span)
        for look_PN, shares_nP in zip(self._looks, self._shares_BnP, strict=False):
            maps = [_plain(part[:, self._first_patch :]) for part in (look_PN, shares_nP.mT)]
            self.maps.append(OmniMap(len(self.maps), self._place[1], *maps))
        self._looks = []

    def count(self, targets_Bn: Tensor | None) -> None:
        """Add what was noted at the real positions of a batch.

        Args:
            targets_Bn: True at those of a decoder; None where there is none.
        """
        mask_Bn = targets_Bn if self._place[0] == "decoder" else self._mask_Bn
        if mask_Bn is None:
            mask_Bn = torch.ones(self._shares_BnP.shape[:2])
        real_Bn, weights_BHnPP = mask_Bn.double(), self._weights_BHnPP
        self._attention = self._attention + torch.einsum("bhnqp,bn->hqp", weights_BHnPP, real_Bn)
        self._pooling = self._pooling + torch.einsum("bnp,bn->p", self._shares_BnP, real_Bn)
        self._positions += float(real_Bn.sum())


@contextmanager
def _watched(
    model: Supernet,
    architecture: Architecture,
    stack: StackName,
    number: int,
    sources: tuple[int, ...],
    maps: int,
) -> Iterator[_Layer]:
    images = isinstance(model.settings.input, ImageInput)
    layer = _Layer(stack, number, sources, maps if images else 0)
    blocks, num_layers = getattr(model, stack), len(getattr(architecture, stack).layers)
    block = blocks.blocks[blocks.kept(num_layers)[number - 1]]
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

    def pool(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        layer.pooled(output)

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
        layer.pooled(output[0])

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


def _plain(shares: Tensor) -> Any:
    """Nested tuples of shares, rounded."""

    def frozen(part: Any) -> Any:
        return tuple(map(frozen, part)) if isinstance(part, list) else part

    return frozen(np.round(shares.numpy(), DIGITS).clip(0.0, 1.0).tolist())
