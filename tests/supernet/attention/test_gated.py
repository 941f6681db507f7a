"""Decay and the gated delta rule: twins, chunks, carried states, padding, and transformers' own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.errors import UsageError
from supernet.attention import flash_gated, flash_linear, gated, gated_chunks
from supernet.attention.base import State
from supernet.attention.decay import DecayKernel
from supernet.attention.gated import GatedKernel
from supernet.attention.gated_chunks import gated_sums
from supernet.attention.gated_delta import GatedDeltaKernel
from supernet.precision import repeatable
from tests.supernet.attention.test_contract import (
    AROUND,
    EDGES,
    MASKS,
    Attention,
    assert_finite,
    assert_near,
    at,
    corner,
    draw,
    mask_of,
    prefix_of,
    run,
)
from tests.support import naive_gated

WIDTH = 6  # of the layer's input


@dataclass(frozen=True)
class GatedCase:
    """One kernel with its twin."""

    name: str
    make: Callable[[int, int, int], GatedKernel]  # of input width, width and heads
    twin: Callable[..., Tensor]
    parameters: int  # with an input of 6, a width of 8 and 2 heads
    inputs: int  # numbers of the state of one sequence that are carried as they came

    def build(
        self,
        dtype: torch.dtype = torch.float64,
        sizes: tuple[int, int, int] = (WIDTH, 8, 2),
    ) -> GatedKernel:
        """A kernel whose parameters are random, and the same numbers in every precision."""
        kernel, generator = self.make(*sizes), torch.Generator().manual_seed(7)
        for parameter in kernel.parameters():
            nn.init.normal_(parameter, generator=generator)
        return kernel.to(dtype)


CASES = [
    GatedCase("decay", lambda *sizes: DecayKernel(*sizes), naive_gated.decay, 2 * 6 + 2 + 8, 0),
    GatedCase(
        "decay_channel",
        lambda *sizes: DecayKernel(*sizes, per_channel=True),
        naive_gated.decay,
        16 * 6 + 8 * 16 + 8 + 8,
        0,
    ),
    GatedCase(
        "gated delta",
        lambda *sizes: GatedDeltaKernel(*sizes, head_dim=sizes[1] // sizes[2]),
        naive_gated.gated_delta,
        3 * 8 * 4 + 2 * 2 * 6 + 2 + 2 + 8 * 6 + 4,
        9 * 8,
    ),
]


@pytest.fixture(params=CASES, ids=[case.name for case in CASES])
def case(request: pytest.FixtureRequest) -> GatedCase:
    chosen: GatedCase = request.param
    return chosen


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short sequences are several chunks, the last of them short."""
    monkeypatch.setattr(gated_chunks, "CHUNK_STATES", 7)


# -- calls: the layer's input goes along as if it were one head ------------------------------------


def inputs(states: int, seed: int = 0, dtype: torch.dtype = torch.float64, **sizes: int) -> list:  # type: ignore[type-arg]
    """Queries, keys, values and the layer's input, ``(B, 1, N, 6)``."""
    qkv = draw(states, 1, seed=seed, dtype=dtype, **sizes)
    x = draw(states, 1, seed=seed + 50, heads=1, head_dim=WIDTH, batch=qkv[0].shape[0])[0]
    return [*qkv, x.to(dtype)]


def encoded(kernel: GatedKernel, mask: Tensor | None) -> Attention:
    """Both directions."""
    return lambda q, k, v, x: kernel(q, k, v, key_mask_BM=mask, x_BND=x[:, 0])  # type: ignore[misc,call-arg]


def decoded(kernel: GatedKernel, mask: Tensor | None) -> Attention:
    """A whole sequence at once."""
    return lambda q, k, v, x: kernel.causal(q, k, v, key_mask_BN=mask, x_BND=x[:, 0])[0]  # type: ignore[misc,call-arg]


def in_pieces(kernel: GatedKernel, sizes: Sequence[int], mask: Tensor | None = None) -> Attention:
    """The same in several calls, carrying the state; only the first is given its mask."""

    def attention(*parts: Tensor) -> Tensor:
        state: State | None = None
        outputs, start = [], 0
        for size in sizes:
            piece = slice(start, start + size)
            q, k, v, x = (part[:, :, piece] for part in parts)
            real = mask[:, piece] if mask is not None and start == 0 else None
            out, state = kernel.causal(q, k, v, key_mask_BN=real, state=state, x_BND=x[:, 0])
            outputs.append(out)
            start += size
        return torch.cat(outputs, dim=2)

    return attention


WAYS = pytest.mark.parametrize("way", [encoded, decoded], ids=["encoder", "decoder"])
Way = Callable[[GatedKernel, Tensor | None], Attention]


@WAYS
@pytest.mark.parametrize("padding", MASKS)
def test_equals_the_naive_twin(case: GatedCase, way: Way, padding: str) -> None:
    exact, short, real = case.build(), case.build(torch.float32), MASKS[padding]
    mask = mask_of(23, 1, real) if real else None
    rows = mask_of(23, 1, real or [(0, 23), (0, 23)])
    given = inputs(23, seed=len(padding), dtype=torch.float32)
    own = dict(exact.named_parameters())

    def twin(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return case.twin(q, k, v, x[:, 0], mask, own, way is encoded)

    slow = run(twin, [x.double() for x in given], rows, exact.parameters())  # type: ignore[arg-type]
    fast = run(way(exact, mask), [x.double() for x in given], rows, exact.parameters())
    assert_near(fast, slow, 1e-10)
    fast = run(way(short, mask), given, rows, short.parameters())
    assert_near(fast, slow, 2e-5)


def all_ways(kernel: GatedKernel, given: Sequence[Tensor], past: State) -> list[Tensor]:
    """All outputs and states: from the start, behind a state, and in both directions."""
    q, k, v, x = given
    first, state = kernel.causal(q, k, v, x_BND=x[:, 0])
    later, end = kernel.causal(q, k, v, state=past, x_BND=x[:, 0])
    return [first, *state, later, *end, kernel(q, k, v, key_mask_BM=None, x_BND=x[:, 0])]


@pytest.mark.parametrize("chunk", [7, 32])
def test_without_gradients_numbers_are_the_same_and_nothing_given_is_written_to(
    case: GatedCase, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gated_chunks, "CHUNK_STATES", chunk)
    kernel = case.build()
    for states in (1, 3, chunk, 70):
        given = inputs(states, seed=states)
        q, k, v, x = (part.flip(2) for part in given)
        past = tuple(part.detach() for part in kernel.causal(q, k, v, x_BND=x[:, 0])[1])
        kept = [part.clone() for part in (*given, *past)]
        expected = [one.detach() for one in all_ways(kernel, given, past)]
        for off in (torch.no_grad, torch.inference_mode):
            with at(chunk, states, off.__name__), off():
                assert_near(all_ways(kernel, given, past), expected, 1e-12)
                assert_near([*given, *past], kept, 0)


def test_long_sequences_are_read_in_blocks(
    case: GatedCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole chunks, whatever is padding or stood before."""
    monkeypatch.setattr(gated_chunks, "CHUNK_STATES", 32)
    kernel = case.build(torch.float32)
    for states in (127, 128, 129, 159, 160, 223):
        q, k, v, x = inputs(states, seed=states, dtype=torch.float32)
        past = tuple(one.detach() for one in kernel.causal(q, k, v, x_BND=x[:, 0])[1])
        masks = None, mask_of(states, 1, [(0, states), (16, states)])
        for mask, before in product(masks, ((), past)):
            call = partial(kernel.causal, q, k, v, key_mask_BN=mask, state=before, x_BND=x[:, 0])
            with torch.no_grad(), at(states, mask is None, before == ()):
                monkeypatch.setattr(gated, "BLOCK_STATES", 64)
                blocks, state = call()
                monkeypatch.setattr(gated, "BLOCK_STATES", 1000)
                whole, expected = call()
                assert_near([blocks, *state], [whole, *expected], 2e-6)
                held = sum(part.untyped_storage().nbytes() for part in state)
                assert held == sum(part.numel() * part.itemsize for part in state)


class TestState:
    def test_pieces_are_the_whole(self, case: GatedCase) -> None:
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 2e-5)):
            kernel, given = case.build(dtype), inputs(22, dtype=dtype)
            whole = run(decoded(kernel, None), given, None, kernel.parameters())
            for sizes in ([1] * 22, [9, 1, 1, 11], [20, 2], [1, 21], [3] * 7 + [1]):
                with at(dtype, sizes):
                    parts = run(in_pieces(kernel, sizes), given, None, kernel.parameters())
                    assert_near(parts, whole, tolerance)

    def test_prompts_of_different_lengths(self, case: GatedCase) -> None:
        kernel, mask = case.build(), mask_of(22, 1, [(0, 22), (5, 22)])
        whole = run(decoded(kernel, mask), inputs(22), mask, kernel.parameters())
        for sizes in ([8] + [1] * 14, [7, 8, 7]):
            parts = run(in_pieces(kernel, sizes, mask), inputs(22), mask, kernel.parameters())
            with at(sizes):
                assert_near(parts, whole, 1e-10)

    def test_bytes_do_not_grow(self, case: GatedCase) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            kernel = case.build(torch.float32)
            for length in (1, 2, 9, 40):
                q, k, v, x = inputs(length, dtype=dtype)
                state = kernel.causal(q, k, v, x_BND=x[:, 0])[1]
                with at(dtype, length):
                    # Sums of 2 samples with 2 heads in fp32; and nothing larger is kept alive.
                    held = sum(part.untyped_storage().nbytes() for part in state)
                    assert held == 2 * (4 * 2 * 16 + dtype.itemsize * case.inputs)

    def test_is_reordered_by_its_first_dimension(self, case: GatedCase) -> None:
        kernel, rows = case.build(), torch.tensor([2, 0, 0, 1])
        q, k, v, x = inputs(20, batch=3)
        first, rest = slice(0, 12), slice(12, None)
        start = (part[:, :, first] for part in (q, k, v))
        state = kernel.causal(*start, x_BND=x[:, 0, first])[1]
        late = [part[:, :, rest] for part in (q, k, v)]
        moved = tuple(part.index_select(0, rows) for part in state)
        found = kernel.causal(*(y[rows] for y in late), state=moved, x_BND=x[rows, 0, rest])[0]
        expected = kernel.causal(*late, state=state, x_BND=x[:, 0, rest])[0]
        assert_near([found.detach()], [expected[rows].detach()], 1e-11)

    def test_without_it_the_past_is_lost(self, case: GatedCase) -> None:
        kernel, given = case.build(), inputs(12)
        whole = decoded(kernel, None)(*given)[:, :, 11:]
        lost = decoded(kernel, None)(*(x[:, :, 11:] for x in given))
        assert (whole - lost).abs().max() > 1e-2


class TestTime:
    def test_the_future_changes_nothing(self, case: GatedCase) -> None:
        kernel, one, other = case.build(), inputs(22), inputs(22, seed=1)
        expected = decoded(kernel, None)(*one).detach()
        for last in (0, 6, 7, 20):
            pairs = list(zip(one, other, strict=True))
            mixed = [torch.cat((a[:, :, : last + 1], b[:, :, last + 1 :]), 2) for a, b in pairs]
            changed = decoded(kernel, None)(*mixed).detach()
            with at(last):
                seen = slice(0, last + 1)
                assert_near([changed[:, :, seen]], [expected[:, :, seen]], 1e-11)
                assert (changed - expected)[:, :, last + 1 :].abs().max() > 1e-3

    def test_an_encoder_is_the_same_backwards(self, case: GatedCase) -> None:
        kernel, given = case.build(), inputs(22)
        out = encoded(kernel, None)(*given)
        back = encoded(kernel, None)(*(x.flip(2) for x in given))
        assert_near([back.flip(2).detach()], [out.detach()], 1e-11)
        assert (out - decoded(kernel, None)(*given)).abs().max() > 1e-2


class TestPadding:
    @WAYS
    def test_changes_nothing(self, case: GatedCase, way: Way) -> None:
        kernel = case.build()
        for before, length, after in AROUND:
            bare, padded = inputs(length), inputs(before + length + after, seed=1)
            inside = slice(before, before + length)
            for x, rubbish in zip(bare, padded, strict=True):
                rubbish[:, :, inside] = x
            mask = mask_of(before + length + after, 1, [(before, before + length)] * 2)
            alone = run(way(kernel, None), bare, mask[:, inside], kernel.parameters())
            among = run(way(kernel, mask), padded, mask, kernel.parameters())
            with at(before, length, after):
                assert all((x[:, :, ~mask[0]] == 0).all() for x in among[:5])
                assert_near([x[:, :, inside] for x in among[:5]], alone[:5], 1e-10)
                assert_near(among[5:], alone[5:], 1e-10)

    @WAYS
    def test_samples_do_not_meet_and_an_empty_one_is_zero(self, case: GatedCase, way: Way) -> None:
        kernel, mask = case.build(), mask_of(22, 1, [(2, 22), (9, 14), (0, 0)])
        given = inputs(22, batch=3)
        together = way(kernel, mask)(*given)
        assert (together[2] == 0).all()
        for b in range(3):
            one = slice(b, b + 1)
            alone = way(kernel, mask[one])(*(x[one] for x in given))
            assert_near([together[one].detach()], [alone.detach()], 1e-10)


class TestElastic:
    @WAYS
    @pytest.mark.parametrize("shape", [(1, 4, 3), (2, 8, 6), (4, 4, 5)])
    def test_equals_stand_alone(
        self, case: GatedCase, way: Way, shape: tuple[int, int, int]
    ) -> None:
        heads, head_dim, width = shape
        large = case.build(sizes=(WIDTH, 32, 4))
        small = case.make(width, heads * head_dim, heads).double()
        prefix_of(small, large)
        given = inputs(20, heads=heads, head_dim=head_dim)
        given[3] = given[3][..., :width]
        mask = mask_of(20, 1, [(0, 19), (2, 20)])
        elastic = run(way(large, mask), given, mask, large.parameters())
        alone = run(way(small, mask), given, mask, small.parameters())
        assert_near([corner(*pair) for pair in zip(elastic, alone, strict=True)], alone, 1e-11)
        for mine, theirs in zip(elastic[5:], alone[5:], strict=True):
            assert float(mine.abs().sum()) == pytest.approx(float(theirs.abs().sum()))

    def test_parameters(self, case: GatedCase) -> None:
        kernel = case.build()
        assert sum(p.numel() for p in kernel.parameters()) == case.parameters
        assert set(kernel.state_dict()) == {name for name, _ in kernel.named_parameters()}

    def test_the_first_draw_is_repeated(self, case: GatedCase) -> None:
        one, two = case.build(), case.build()
        for kernel in (one, two):
            kernel.reset_parameters(torch.Generator().manual_seed(3))
        for mine, theirs in zip(one.parameters(), two.parameters(), strict=True):
            assert torch.equal(mine, theirs) and mine.isfinite().all()


class TestStart:
    """What a new kernel remembers."""

    def test_decay_is_retnet_s(self) -> None:
        for per_channel in (False, True):
            kernel = DecayKernel(6, 8, 8, per_channel)
            (log_gate,) = kernel.gates(torch.zeros(1, 1, 6), 8, 1)
            expected = torch.tensor([1 - 2.0 ** (-5 - h) for h in range(8)])
            assert_near([log_gate.exp().flatten().detach()], [expected], 1e-6)

    def test_delta_is_mamba_s(self) -> None:
        kernel = GatedDeltaKernel(6, 400, 400, 1)
        log_gate, beta = kernel.gates(torch.zeros(1, 1, 6), 400, 1)
        assert -1.6 <= log_gate.min() < -0.8 and -0.02 < log_gate.max() <= -0.001
        assert_near([beta.detach()], [torch.full((1, 400, 1, 1), 0.5)], 1e-6)


class TestEdges:
    @WAYS
    def test_finite(self, case: GatedCase, way: Way) -> None:
        kernel = case.build(torch.float32)
        for length in (1, 3, 20):
            plain = inputs(length, dtype=torch.float32)
            given = [torch.cat([change(x) for change in EDGES.values()]) for x in plain]
            for rows in ([(0, length), (length // 2, length)], [(0, 0), (0, length)]):
                mask = mask_of(length, 1, rows * len(EDGES))
                for masks in (None, mask):
                    with at(length, rows, masks is None):
                        assert_finite(run(way(kernel, masks), given, None, kernel.parameters()))

    @WAYS
    def test_gradients_by_differences(self, case: GatedCase, way: Way) -> None:
        kernel = case.build(sizes=(WIDTH, 4, 1))
        mask = mask_of(15, 1, [(1, 14)])
        leaves = [x.requires_grad_() for x in inputs(15, batch=1, heads=1, seed=3)]
        attention = way(kernel, mask)
        assert torch.autograd.gradcheck(
            lambda *x: attention(*x[:4]), [*leaves, *kernel.parameters()], fast_mode=True
        )

    def test_meta_device(self, case: GatedCase) -> None:
        kernel = case.build().to("meta")
        q, k, v, x = (y.to("meta") for y in inputs(20))
        out, state = kernel.causal(q, k, v, x_BND=x[:, 0])
        assert out.shape == q.shape
        assert kernel.causal(q, k, v, state=state, x_BND=x[:, 0])[0].shape == q.shape
        assert kernel(q, k, v, key_mask_BM=None, x_BND=x[:, 0]).shape == q.shape

    @WAYS
    @pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
    def test_bf16_autocast(self, case: GatedCase, way: Way, device: str) -> None:
        kernel, given = case.build(torch.float32).to(device), inputs(20)
        low_inputs = [x.bfloat16() for x in given]
        with torch.autocast(device, dtype=torch.bfloat16):
            moved = (x.to(device) for x in low_inputs)
            low = way(kernel, None)(*moved).cpu()
        exact = way(case.build(), None)(*(x.double() for x in low_inputs))
        assert low.dtype == torch.bfloat16
        assert_near([low.detach()], [exact.detach()], 2**-8)

    def test_several_states_of_a_position_are_refused(self, case: GatedCase) -> None:
        kernel, (q, k, v, x) = case.build(), inputs(4)
        with pytest.raises(UsageError, match="2 at each position: choose another kernel"):
            kernel(q, k, v, key_mask_BM=None, span=2, x_BND=x[:, 0])
        with pytest.raises(UsageError, match="one state after the other"):
            kernel.causal(q, k, v, span=2, x_BND=x[:, 0])

    def test_another_sequence_is_refused(self, case: GatedCase) -> None:
        kernel, (q, k, v, _) = case.build(), inputs(4)
        for refused in (
            lambda: kernel.memory(k, v, key_mask_BM=None),
            lambda: kernel.read(q, (), torch.zeros(1, 4)),
        ):
            with pytest.raises(UsageError, match="cannot attend to another sequence"):
                refused()


# -- transformers ---------------------------------------------------------------------------------


class TestTransformers:
    """Qwen3-Next's layer in plain torch, with the same weights."""

    def test_the_chunked_rule(self) -> None:
        modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
        leaves = [x.float().requires_grad_() for x in drawn_sums("delta", 150, 16)]
        past = draw(16, 1, head_dim=16, dtype=torch.float32)[0]
        q, k, v, log_gate, beta = (x.transpose(1, 2) for x in leaves)
        theirs = modeling.torch_chunk_gated_delta_rule(
            q * 4, k, v, g=log_gate[..., 0], beta=beta, initial_state=past, output_final_state=True
        )
        expected = [theirs[0].transpose(1, 2), theirs[1]]
        weights = [torch.randn(x.shape, generator=seeded()) for x in expected]
        found = summed(*leaves, past=past)
        for chunk in (False, True):
            outputs = found if chunk else expected
            loss = sum((x * w).sum() for x, w in zip(outputs, weights, strict=True))
            gradients = torch.autograd.grad(loss, leaves, retain_graph=True)  # type: ignore[arg-type]
            outputs.extend(gradients)
        assert_near([x.detach() for x in found], [x.detach() for x in expected], 1e-5)

    def test_the_layer(self) -> None:
        modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
        heads, head_dim, width = 2, 8, 12
        config = modeling.Qwen3NextConfig(
            hidden_size=width,
            linear_num_value_heads=heads,
            linear_num_key_heads=heads,
            linear_key_head_dim=head_dim,
            linear_value_head_dim=head_dim,
            num_hidden_layers=1,
            layer_types=["linear_attention"],
        )
        theirs = modeling.Qwen3NextGatedDeltaNet(config, 0)
        kernel = GatedDeltaKernel(width, heads * head_dim, heads, head_dim)
        for parameter in theirs.parameters():
            nn.init.normal_(parameter, std=0.5, generator=seeded())
        # Their rows are sorted by head, then by q, k, v and z, or b and a.
        rows = theirs.in_proj_qkvz.weight.detach().view(heads, 4, head_dim, width)
        q_weight, k_weight, v_weight, z_weight = rows.transpose(0, 1).flatten(1, 2)
        b_weight, a_weight = theirs.in_proj_ba.weight.detach().view(heads, 2, width).unbind(1)
        with torch.no_grad():
            kernel.taps_3WT.copy_(theirs.conv1d.weight.view(3, heads * head_dim, 4))
            kernel.gates_2HE.copy_(torch.stack((a_weight, b_weight)))
            kernel.log_rate_H.copy_(theirs.A_log)
            kernel.step_bias_H.copy_(theirs.dt_bias)
            kernel.output_WE.copy_(z_weight)
            kernel.gain_D.copy_(theirs.norm.weight)
        x = torch.randn(2, 150, width, generator=seeded())

        def ours(x: Tensor) -> Tensor:
            qkv = (
                F.linear(x, weight).unflatten(-1, (heads, head_dim)).transpose(1, 2)
                for weight in (q_weight, k_weight, v_weight)
            )
            out, _ = kernel.causal(*qkv, x_BND=x)
            return F.linear(out.transpose(1, 2).flatten(2), theirs.out_proj.weight)

        assert_near(run(ours, [x], None), run(theirs, [x], None), 1e-5)  # type: ignore[arg-type]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


# -- the sums themselves --------------------------------------------------------------------------

FORMS = ("head", "channel", "delta")


def drawn_sums(form: str, states: int, features: int = 4) -> tuple[Tensor, ...]:
    """Queries, keys of length 1, values, gates, and β for the delta rule."""
    q, k, v = draw(states, 1, head_dim=features, seed=2)
    k, gates = F.normalize(k, dim=-1), features if form == "channel" else 1
    log_gate = -draw(states, 1, head_dim=gates, seed=3)[0].abs()
    beta = draw(states, 1, head_dim=1, seed=4)[0][..., 0].sigmoid()
    return (q, k, v, log_gate, beta) if form == "delta" else (q, k, v, log_gate)


def stepwise(*given: Tensor) -> list[Tensor]:
    """The recurrence, a call for each state."""
    q, k, v, log_gate, *beta = given
    past, outputs = None, []
    for i in range(q.shape[2]):
        one = slice(i, i + 1)
        betas = beta[0][:, :, one] if beta else None
        parts = (x[:, :, one] for x in (q, k, v, log_gate))
        out, past = gated_sums(*parts, betas, past)
        outputs.append(out)
    assert past is not None
    return [torch.cat(outputs, dim=2), past]


def summed(*given: Tensor, past: Tensor | None = None) -> list[Tensor]:
    q, k, v, log_gate, *beta = given
    return list(gated_sums(q, k, v, log_gate, beta[0] if beta else None, past))


class TestChunks:
    @pytest.mark.parametrize("form", FORMS)
    def test_their_length_does_not_matter(self, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
        given = drawn_sums(form, 19)
        expected = stepwise(*given)
        for chunk in (2, 7, 16, 1000):
            monkeypatch.setattr(gated_chunks, "CHUNK_STATES", chunk)
            with at(chunk):
                assert_near(summed(*given), expected, 1e-11)

    @pytest.mark.parametrize("form", FORMS)
    def test_the_hardest_gates(self, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """All is forgotten, or nothing, from state to state, in fp32 and chunks as they are."""
        monkeypatch.undo()
        given = list(drawn_sums(form, 100))
        least = -4.0 if form == "channel" else -1e4
        given[3] = torch.where(given[3] < -0.6, least, 0.0).to(torch.float64)
        leaves = [x.float().requires_grad_() for x in given]
        out, state = summed(*leaves)
        assert_near([out.detach(), state.detach()], stepwise(*given), 1e-5)
        assert_finite(torch.autograd.grad(out.sum() + state.sum(), leaves))

    def test_one_key_over_and_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With β 1 and no decay each value takes the place of the last: closed form."""
        monkeypatch.undo()
        key = F.normalize(torch.ones(1, 1, 1, 4), dim=-1).expand(1, 1, 90, 4)
        v, ones = draw(90, 1, batch=1, heads=1, dtype=torch.float32)[2], torch.ones(1, 1, 90)
        out, state = gated_sums(key, key, v, torch.zeros(1, 1, 90, 1), ones, None)
        assert_near([out], [v], 1e-5)
        assert_near([state], [key[:, :, :1].mT @ v[:, :, -1:]], 1e-5)

    def test_without_decay_a_sum_over_the_past(self) -> None:
        q, k, v, _ = drawn_sums("head", 30)
        for gates in (1, 4):
            out, state = gated_sums(q, k, v, torch.zeros(*q.shape[:3], gates).double(), None, None)
            assert_near([out, state], [(q @ k.mT).tril() @ v, k.mT @ v], 1e-12)

    @pytest.mark.parametrize("form", FORMS)
    def test_no_tensor_grows_faster_than_the_sequence(
        self, form: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        sizes: list[int] = []

        def note(x: Tensor) -> Tensor:
            sizes.append(x.numel())
            return x

        leaves = [x.float().requires_grad_() for x in drawn_sums(form, 1024, 32)]
        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            summed(*leaves)[0].sum().backward()
        assert max(sizes) <= 2 * 2 * 1024 * 64 and sum(sizes) <= 2 * 2 * 1024 * 32 * 40


# -- flash-linear-attention -----------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("carried", [False, True])
def test_the_layout_of_the_cuda_kernels(
    form: str, carried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, past = drawn_sums(form, 40), draw(4, 1)[0] if carried else None
    expected = summed(*given, past=past)

    def stand_in(q: Tensor, k: Tensor, v: Tensor, **options: object) -> tuple[Tensor, Tensor]:
        assert options["scale"] == 1.0 and options["output_final_state"]
        g, beta, start = options["g"], options.get("beta"), options["initial_state"]
        assert isinstance(g, Tensor) and (start is None or isinstance(start, Tensor))
        log_gate = (g if form == "channel" else g[..., None]).transpose(1, 2)
        betas = beta.transpose(1, 2) if isinstance(beta, Tensor) else None
        monkeypatch.setattr(gated_chunks, "flash_gated_takes", lambda *_: False)
        out, state = gated_sums(*(x.transpose(1, 2) for x in (q, k, v)), log_gate, betas, start)
        return out.transpose(1, 2), state

    asked: list[str] = []
    monkeypatch.setattr(flash_gated, "flash_gated_kernel", lambda f: asked.append(f) or stand_in)
    monkeypatch.setattr(gated_chunks, "flash_gated_takes", lambda *_: True)
    assert_near(summed(*given, past=past), expected, 1e-12)
    assert asked == [form]


def test_where_the_cuda_kernels_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_linear, "flash_kernel", lambda: object())
    takes = flash_gated.flash_gated_takes
    cuda = torch.device("cuda", 0)
    assert takes(cuda, torch.float32, 256) and not takes(cuda, torch.float32, 255)
    assert not takes(cuda, torch.float64, 256)
    assert not takes(torch.device("cpu"), torch.float32, 256)
    with repeatable("cuda", True):
        assert not takes(cuda, torch.float32, 256)
    monkeypatch.setattr(flash_linear, "flash_kernel", lambda: None)
    assert not takes(cuda, torch.float32, 256)


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_the_cuda_kernels_equal_our_own(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if flash_linear.flash_kernel() is None:
        pytest.skip("the package fla-core is not installed (extra cuda-kernels)")
    monkeypatch.undo()
    leaves = [x.float().cuda().requires_grad_() for x in drawn_sums(form, 300, 32)]

    def ran() -> list[Tensor]:
        out, state = summed(*leaves)
        return [out, state, *torch.autograd.grad(out.square().sum() + state.mean(), leaves)]

    theirs = ran()
    monkeypatch.setattr(gated_chunks, "flash_gated_takes", lambda *_: False)
    for found, expected in zip(theirs, ran(), strict=True):
        assert (found - expected).abs().max() <= 5e-3 * expected.abs().max()
