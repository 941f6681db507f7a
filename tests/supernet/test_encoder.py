"""Blocks and stacks of layers: norms, depth, and omnidirectional layers against a slow twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.architecture import Architecture, AttentionKind, EncoderLayer, omni_spans
from search_spaces.settings import ModelSettings
from supernet.attention.softmax import seen_keys
from supernet.blocks import ElasticEncoderBlock
from supernet.encoder import ElasticEncoder, omni_block
from supernet.plan import AttentionPlan, LayerPlan, encoder_of, encoder_plan_of_space
from tests.support.supernet_cases import IMAGES, KINDS, gradients, network, randomised, space_of

SPAN_KINDS: tuple[tuple[AttentionKind, ...], ...] = (
    ("softmax", "omni"),
    ("softmax", "linear", "omni", "omni"),
    ("omni", "softmax", "omni", "softmax"),
    ("softmax", "softmax", "softmax", "omni"),
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def random_encoder(settings: ModelSettings) -> ElasticEncoder:
    encoder = ElasticEncoder(settings, encoder_plan_of_space(space_of(settings)), dropout=0.0)
    randomised(encoder)
    return encoder.eval()


def random_block(settings: ModelSettings, span: int = 1, dropout: float = 0.0) -> nn.Module:
    attention = AttentionPlan(16, 16, num_heads=4, head_dim=16, kinds=KINDS, span=span)
    plan = LayerPlan(attention, ffn_dim=16)
    return randomised(ElasticEncoderBlock(settings, 12, plan, dropout))


def twin_of_stack(
    encoder: ElasticEncoder, architecture: Architecture, x: Tensor, mask: Tensor | None
) -> Tensor:
    """Sorts and pools the states one by one, with a list of every layer's output."""
    stack = encoder_of(architecture)
    spans = omni_spans([layer.attention for layer in stack.layers], encoder.settings.omni_span)
    outputs = [x]
    for number, (layer, span) in enumerate(zip(stack.layers, spans, strict=True)):
        seen = outputs[number + 1 - span : number + 1]
        positions = range(x.shape[1])
        states = torch.stack([seen[p][:, n] for n in positions for p in range(span)], dim=1)
        real = None
        if mask is not None:
            real = torch.stack([mask[:, n] for n in positions for _ in range(span)], dim=1)
        done = encoder.blocks[number](states, layer, real, span)
        pooled = [done[:, n * span : (n + 1) * span].max(dim=1).values for n in positions]
        outputs.append(torch.stack(pooled, dim=1))
    return outputs[-1] if encoder.final_norm is None else encoder.final_norm(outputs[-1])


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kernel", ["performer", "linformer", "bigbird", "full"])
@pytest.mark.parametrize("kinds", SPAN_KINDS, ids=" ".join)
def test_omni_stacks_are_the_slow_twins(
    norm: str, kernel: str, kinds: tuple[AttentionKind, ...]
) -> None:
    encoder = random_encoder(replace(IMAGES, norm=norm, omni_kernel=kernel))  # type: ignore[arg-type]
    architecture, x = network(*kinds), draw(2, 6, 12)
    mask = torch.arange(6) < torch.tensor([[6], [4]])
    fast = encoder(x, encoder_of(architecture), mask)
    slow = twin_of_stack(encoder, architecture, x, mask)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)
    expected = gradients(encoder, slow)
    for name, found in gradients(encoder, fast).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-9, atol=1e-9, msg=name)


def test_states_stand_position_by_position() -> None:
    """IndexSort: state ``position * P + layer``."""
    seen: list[Tensor] = []

    class Probe(nn.Module):
        def forward(
            self, x: Tensor, _layer: EncoderLayer, mask: Tensor, span: int, _: object
        ) -> Tensor:
            seen.extend([x, mask, torch.tensor(span)])
            return x

    outputs = [torch.full((1, 3, 1), 10.0) * layer + torch.arange(3.0)[:, None] for layer in (1, 2)]
    mask = torch.tensor([[True, True, False]])
    pooled = omni_block(Probe(), outputs, EncoderLayer("omni", 1, 1), mask)
    assert seen[0].flatten().tolist() == [10, 20, 11, 21, 12, 22]
    assert seen[1].tolist() == [[True, True, True, True, False, False]]
    assert int(seen[2]) == 2
    assert pooled.flatten().tolist() == [20, 21, 22]


def test_of_each_feature_the_largest_state_is_kept() -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor, *_: object) -> Tensor:
            return x

    first, second = draw(2, 3, 4), draw(2, 3, 4, seed=1)
    pooled = omni_block(Nothing(), [first, second], EncoderLayer("omni", 1, 1), None)
    assert torch.equal(pooled, torch.maximum(first, second))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_an_omni_layer_that_sees_one_layer_is_ordinary(norm: str) -> None:
    settings = replace(IMAGES, omni_kernel="full", norm=norm, omni_span=1)  # type: ignore[arg-type]
    encoder, x = random_encoder(settings), draw(2, 6, 12)
    omni = encoder(x, encoder_of(network("omni", "omni", "omni")), None)
    ordinary = encoder(x, encoder_of(network("softmax", "softmax", "softmax")), None)
    assert torch.equal(omni, ordinary)
    wide = random_encoder(replace(settings, omni_span=2))
    # Behind an omni layer another one sees the last output only, so that span 2 changes nothing.
    assert torch.equal(wide(x, encoder_of(network("omni", "omni", "omni")), None), omni)
    assert not torch.equal(wide(x, encoder_of(network("softmax", "omni")), None), omni)


@pytest.mark.parametrize(("span", "blind"), [(2, True), (3, False)])
def test_an_omni_layer_sees_no_further_than_its_span(span: int, blind: bool) -> None:
    """Layers 2 and 3 put out constants, so layer 4 knows the input only if it sees layer 1."""
    encoder = random_encoder(replace(IMAGES, omni_span=span, norm="post"))
    for block in list(encoder.blocks)[1:3]:
        assert isinstance(block, ElasticEncoderBlock)
        nn.init.zeros_(block.ffn_norm.weight)
    stack = encoder_of(network("softmax", "softmax", "softmax", "omni"))
    one, other = draw(2, 6, 12), draw(2, 6, 12, seed=1)
    assert torch.equal(encoder(one, stack, None), encoder(other, stack, None)) is blind


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("share", [True, False])
def test_a_block_is_attention_and_feed_forward(norm: str, share: bool) -> None:
    settings = replace(IMAGES, norm=norm, share_attention_weights=share)  # type: ignore[arg-type]
    block, x = random_block(settings), draw(2, 5, 12)
    assert isinstance(block, ElasticEncoderBlock)
    found = block(x, EncoderLayer("softmax", 2, 10))
    torch.testing.assert_close(found, plain_block(block, x, share), rtol=0, atol=1e-11)


def plain_block(block: ElasticEncoderBlock, x: Tensor, share: bool) -> Tensor:
    """The definition, with explicit matrices: 2 heads of 4, 10 hidden units."""
    own = block.attention.projections["shared" if share else "softmax"]

    def norm(layer: nn.LayerNorm, y: Tensor) -> Tensor:
        centred = y - y.mean(dim=-1, keepdim=True)
        scale = (centred.square().mean(dim=-1, keepdim=True) + layer.eps).sqrt()
        return centred / scale * layer.weight + layer.bias

    def attend(y: Tensor) -> Tensor:
        q, k, v = (
            y @ getattr(own, name).weight[:8].T + getattr(own, name).bias[:8]
            for name in ("query", "key", "value")
        )
        heads = [slice(0, 4), slice(4, 8)]
        out = [(q[..., h] @ k[..., h].mT / 2).softmax(dim=-1) @ v[..., h] for h in heads]
        return torch.cat(out, dim=-1) @ own.output.weight[:, :8].T + own.output.bias

    def feed(y: Tensor) -> Tensor:
        hidden = F.relu(y @ block.ffn.inner.weight[:10].T + block.ffn.inner.bias[:10])
        return hidden @ block.ffn.outer.weight[:, :10].T + block.ffn.outer.bias

    if block.pre_norm:
        x = x + attend(norm(block.attention_norm, x))
        return x + feed(norm(block.ffn_norm, x))
    x = norm(block.attention_norm, x + attend(x))
    return norm(block.ffn_norm, x + feed(x))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_only_pre_norm_ends_with_a_norm(norm: str) -> None:
    encoder = random_encoder(replace(IMAGES, norm=norm))  # type: ignore[arg-type]
    assert (encoder.final_norm is not None) == (norm == "pre")


def test_deeper_blocks_are_left_alone() -> None:
    encoder = random_encoder(IMAGES)
    found = gradients(
        encoder, encoder(draw(2, 6, 12), encoder_of(network("softmax", "omni")), None)
    )
    reached = {name.split(".")[1] for name, g in found.items() if g is not None}
    assert reached & {"0", "1", "2", "3"} == {"0", "1"}


def test_heads_cut_the_width_and_not_the_other_way_round() -> None:
    block, x = random_block(replace(IMAGES, head_dim=None, qkv_dim=16)), draw(2, 5, 12)
    outputs = [block(x, EncoderLayer("softmax", heads, 10)) for heads in (1, 2, 4)]
    assert not torch.allclose(outputs[0], outputs[1]) and not torch.allclose(*outputs[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_positions_are_told_apart_by_cosine_attention_only(kind: AttentionKind) -> None:
    """Without positions an ordinary layer maps permuted inputs to permuted outputs."""
    block, x = random_block(IMAGES), draw(2, 6, 12)
    layer, order = EncoderLayer(kind, 2, 10), torch.tensor([3, 0, 5, 1, 4, 2])
    same = torch.allclose(block(x[:, order], layer), block(x, layer)[:, order], atol=1e-10)
    assert same == (kind != "linear")


def test_dropout_touches_training_only() -> None:
    block, x = random_block(IMAGES, dropout=0.5), draw(2, 5, 12)
    layer = EncoderLayer("softmax", 2, 10)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        block.train()
        assert not torch.equal(block(x, layer), block(x, layer))
    block.eval()
    assert torch.equal(block(x, layer), block(x, layer))


def test_a_mask_is_worked_out_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[Tensor]()

    def counted(mask_BM: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(mask_BM)
        return seen_keys(mask_BM)

    monkeypatch.setattr("supernet.attention.softmax.seen_keys", counted)
    encoder, stack = random_encoder(IMAGES), encoder_of(network(*["softmax"] * 3))
    x, mask = draw(2, 5, stack.embed_dim), torch.ones(2, 5, dtype=torch.bool)
    for forwards in (1, 2):
        encoder(x, stack, mask)
        assert len(calls) == forwards
