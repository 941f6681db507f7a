"""Language models with a memory: segments of a text, each seeing the end of those before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from supernet.attention.softmax import last_keys
from supernet.building import build_supernet
from supernet.data.prepared import StreamSplit
from supernet.data.text_batches import StreamBatch, recurrent_batches, stream_batches
from supernet.data.text_files import TokenRows
from supernet.extraction import StandAlone, extract
from supernet.plan import decoder_of
from supernet.sequence_models import LanguageModel
from tests.supernet.test_extraction import check_gradients
from tests.support.memory_cases import (
    a_text,
    by_segments,
    memory_space,
    random_memory_model,
    remembering,
)
from tests.support.naive_memory import naive_by_segments
from tests.support.supernet_cases import gradients, random_networks

SIZES = [[16, 14], [5] * 6, [1] * 30, [1, 18, 2, 9]]
OTHERS: list[dict[str, Any]] = [
    {},
    {"norm": "post"},
    {"head_dim": None, "qkv_dim": 8, "relative_positions": 1},
]
each_model = pytest.mark.parametrize("settings", OTHERS, ids=["pre-norm", "post-norm", "qkv_dim"])


def near(found: Tensor, expected: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def moved_by(read: Callable[[Tensor], Tensor], text_1T: Tensor) -> Tensor:
    """Bool ``(T, T)``: whether another token at place p (row) changes the output at t (column)."""
    expected, rows = read(text_1T), []
    for place in range(text_1T.shape[1]):
        other = text_1T.clone()
        other[0, place] = other[0, place] % 10 + 1
        rows.append((read(other) - expected).abs().amax(dim=(0, 2)) > 1e-9)
    return torch.stack(rows)


class TestSegments:
    @pytest.mark.parametrize("sizes", SIZES, ids=str)
    @each_model
    def test_with_a_long_memory_segments_are_the_whole(
        self, settings: dict[str, Any], sizes: list[int]
    ) -> None:
        text, network = a_text(3, 30), remembering(40)
        whole = random_memory_model(30, **settings)(text, network)
        near(by_segments(random_memory_model(**settings), text, network, sizes), whole)

    @pytest.mark.parametrize("sizes", SIZES, ids=str)
    def test_in_single_precision_too(self, sizes: list[int]) -> None:
        text, network = a_text(3, 30), remembering(40)
        short, long = random_memory_model().float(), random_memory_model(30).float()
        for parameter in (*short.parameters(), *long.parameters()):
            parameter.data *= 0.3
        near(by_segments(short, text, network, sizes), long(text, network), 1e-5)

    @pytest.mark.parametrize("memory_length", [1, 3, 7, 40])
    @pytest.mark.parametrize("sizes", [[5] * 4, [2, 9, 1, 8]], ids=str)
    @each_model
    def test_naive_twin(
        self, settings: dict[str, Any], sizes: list[int], memory_length: int
    ) -> None:
        model, text = random_memory_model(**settings), a_text(2, 20)
        network = remembering(memory_length, 3)
        expected = naive_by_segments(model, text, network, sizes)
        near(by_segments(model, text, network, sizes), expected)

    @pytest.mark.parametrize("size", [3, 4, 10])
    def test_one_layer_sees_its_segment_and_the_memory(self, size: int) -> None:
        model, text = random_memory_model(), a_text(1, 20)
        sizes = [min(size, 20 - at) for at in range(0, 20, size)]
        found = moved_by(lambda t: by_segments(model, t, remembering(3, 1), sizes), text)
        place, output = torch.arange(20)[:, None], torch.arange(20)[None]
        begin = output // size * size
        assert torch.equal(found, (place >= begin - 3) & (place <= output))

    @pytest.mark.parametrize("layers", [2, 3])
    def test_every_further_layer_sees_one_segment_more(self, layers: int) -> None:
        model, text, network = random_memory_model(), a_text(1, 20), remembering(3, layers)
        found = moved_by(lambda t: by_segments(model, t, network, [4] * 5), text)
        place, output = torch.arange(20)[:, None], torch.arange(20)[None]
        first = output // 4 * 4 - 4 * (layers - 1) - 3
        assert torch.equal(found, (place >= first) & (place <= output))

    def test_without_a_memory_every_segment_begins_anew(self) -> None:
        model, text, network = random_memory_model(), a_text(2, 15), remembering(0)
        alone = [model(segment, network) for segment in text.split(5, dim=1)]
        assert torch.equal(by_segments(model, text, network, [5, 5, 5]), torch.cat(alone, dim=1))

    def test_token_by_token_inside_of_a_segment(self) -> None:
        model, text, network = random_memory_model(), a_text(2, 12), remembering(3)
        _, state = model.step(text[:, :6], model.start(network))
        state, found = state.next_segment(), []
        for token in text[:, 6:].split(1, dim=1):
            logits, state = model.step(token, state)
            found.append(logits)
        near(torch.cat(found, 1), by_segments(model, text, network, [6, 6])[:, 6:])


class TestContext:
    @pytest.mark.parametrize("width", [3, 5, 18])
    def test_one_layer_trains_on_what_recurrence_shows(self, width: int) -> None:
        """Keys of a first layer do not depend on what stands before them."""
        model, text, network = random_memory_model(), a_text(3, width + 6), remembering(3, 1)
        found = model(text[:, width:], network, text[:, :width])
        near(found, by_segments(model, text, network, [width, 6])[:, width:])

    @pytest.mark.parametrize("layers", [1, 3])
    def test_only_the_last_of_it_is_read(self, layers: int) -> None:
        model, text, network = random_memory_model(), a_text(1, 14), remembering(3, layers)
        found = moved_by(lambda t: model(t[:, 9:], network, t[:, :9]), text)
        assert not found[:6].any() and found[6:9].all()

    def test_it_is_one_pass_over_both(self) -> None:
        """With a memory longer than the context, whose reading has to be cut as well."""
        text, network = a_text(3, 48), remembering(40)
        whole = random_memory_model(48)(text, network)[:, 40:]
        near(random_memory_model()(text[:, 40:], network, text[:, :40]), whole)

    @each_model
    def test_padding_changes_nothing(self, settings: dict[str, Any]) -> None:
        model, text = random_memory_model(**settings), a_text(4, 7)
        context = a_text(4, 9, seed=1)
        for network in (remembering(3), remembering(40)):
            for row, real in enumerate((9, 8, 2, 0)):
                context[row, : 9 - real] = 0
                alone = model(text[row : row + 1], network, context[row : row + 1, 9 - real :])
                near(model(text, network, context)[row : row + 1], alone)

    @pytest.mark.parametrize("context", [None, torch.zeros(2, 0).long(), torch.zeros(2, 5).long()])
    def test_nothing_before_the_text(self, context: Tensor | None) -> None:
        model, text, network = random_memory_model(), a_text(2, 6), remembering(3)
        near(model(text, network, context), model(text, network))

    def test_segments_go_on_from_a_padded_context(self) -> None:
        model, text, network = random_memory_model(), a_text(2, 18), remembering(4)
        context = torch.tensor([[0, 0, 5], [0, 0, 0]])
        state, found = model.start(network, context), []
        for segment in text.split(6, dim=1):
            logits, state = model.step(segment, state)
            found.append(logits)
            state = state.next_segment()
        first = by_segments(model, torch.cat((context[:1, 2:], text[:1]), 1), network, [1, 6, 6, 6])
        near(torch.cat(found, 1)[:1], first[:, 1:])
        near(torch.cat(found, 1)[1:], by_segments(model, text[1:], network, [6, 6, 6]))

    def test_a_network_without_a_memory_reads_none(self) -> None:
        model, text, network = random_memory_model(), a_text(2, 6), remembering(0)
        assert torch.equal(model(text, network, a_text(2, 9, 1)), model(text, network))


class TestGradients:
    def test_they_stop_at_the_memory(self) -> None:
        """Tokens 6 to 10 stand in the context alone, and the logits of 1 to 5 are asked for."""
        model, segment, context = random_memory_model(), a_text(3, 6) % 5 + 1, a_text(3, 3) % 5 + 6
        found = gradients(model, model(segment, remembering(3), context)[..., 1:6])
        rows = found["tables.0.weight"]
        assert rows is not None and bool(rows[1:6].any()) and not rows[6:].any()

    def test_the_memory_is_read_without_a_graph(self) -> None:
        model, saved = random_memory_model(), list[Tensor]()

        def save(tensor: Tensor) -> Tensor:
            saved.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            model.start(remembering(3), a_text(2, 6))
            assert not saved
            model.step(a_text(2, 6), model.start(remembering(3)))
            assert saved

    def test_a_state_loses_them_between_segments(self) -> None:
        model = random_memory_model()
        _, state = model.step(a_text(2, 6), model.start(remembering(3)))
        before, after = state.states, state.next_segment().states
        assert before is not None and before[0][0].requires_grad
        assert after is not None and not any(part.requires_grad for s in after for part in s)

    def test_bf16_autocast_has_the_gradients_of_full_precision(self) -> None:
        """Weights that were cast while the memory was read must not lose their gradients."""
        torch.manual_seed(0)
        model = StandAlone(LanguageModel, memory_space().model, remembering(3))
        exact = gradients(model, model(a_text(4, 6), a_text(4, 3, 1)))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(a_text(4, 6), a_text(4, 3, 1))
        for name, found in gradients(model, logits.float()).items():
            expected = exact[name]
            assert found is not None and expected is not None
            if not name.endswith("key.bias"):  # which moves every logit of a query alike
                assert torch.cosine_similarity(found.flatten(), expected.flatten(), 0) > 0.95, name


class TestElastic:
    @each_model
    def test_equals_stand_alone(self, settings: dict[str, Any]) -> None:
        supernet, text = random_memory_model(**settings), a_text(3, 8)
        context = a_text(3, 9, 1) * (torch.arange(9) >= torch.tensor([0, 4, 9])[:, None])
        networks = random_networks(memory_space(**settings), 12)
        assert {n.decoder.memory_length for n in networks if n.decoder} == {0, 3, 40}
        for network in networks:
            small = extract(supernet, network)
            elastic, alone = supernet(text, network, context), small(text, context)
            near(elastic, alone, 1e-9)
            check_gradients(gradients(supernet, elastic), gradients(small.network, alone))

    def test_a_stand_alone_network_reads_segments(self) -> None:
        supernet, text, network = random_memory_model(), a_text(2, 12), remembering(3)
        small = extract(supernet, network)
        _, state = small.step(text[:, :6], small.start())
        found, _ = small.step(text[:, 6:], state.next_segment())
        near(found, by_segments(supernet, text, network, [6, 6])[:, 6:])

    def test_the_memory_adds_no_parameters(self) -> None:
        settings = memory_space().model
        held = [
            sum(p.numel() for p in StandAlone(LanguageModel, settings, remembering(m)).parameters())
            for m in (0, 3, 40)
        ]
        assert len(set(held)) == 1


class TestState:
    def test_it_holds_no_more_than_the_memory(self) -> None:
        model = random_memory_model()
        state, seen = model.start(remembering(3)), []
        for segment in a_text(2, 26).split([1, 1, 6, 18], dim=1):
            _, state = model.step(segment, state)
            state = state.next_segment()
            assert state.states is not None and state.position == 0
            seen.append({part.shape[2] for kept in state.states for part in kept})
            assert {p.untyped_storage().nbytes() for kept in state.states for p in kept} == {
                2 * 2 * 4 * 8 * len(seen) if len(seen) < 3 else 2 * 2 * 4 * 8 * 3
            }
        assert seen == [{1}, {2}, {3}, {3}]

    def test_rows_can_be_reordered(self) -> None:
        model, text, network = random_memory_model(), a_text(3, 12), remembering(3)
        rows = torch.tensor([2, 0, 0])
        context = torch.tensor([[0, 0, 1], [0, 2, 3], [4, 5, 6]])
        state = model.start(network, context).reorder(rows)
        near(model.step(text[rows], state)[0], model(text, network, context)[rows])

    def test_before_the_first_token_there_is_nothing_to_remember(self) -> None:
        assert random_memory_model().start(remembering(3)).next_segment().states is None

    def test_masks_are_cut_like_their_keys(self) -> None:
        k, v = torch.arange(10.0).view(1, 1, 5, 2), torch.zeros(1, 1, 5, 2)
        mask = torch.tensor([[False, False, True, True, True]])
        for kept, left in ((2, [True, True]), (4, [False, True, True, True])):
            cut = last_keys((k, v, mask), kept)
            assert torch.equal(cut[0], k[:, :, -kept:]) and cut[2].tolist() == [left]
        assert [part.shape[2] for part in last_keys((k, v), 9)] == [5, 5]


class TestRefusals:
    def test_the_longest_text_is_not_bounded_but_the_segment_is(self) -> None:
        model, network = random_memory_model(), remembering(3)
        by_segments(model, a_text(1, 90), network, [18] * 5)
        with pytest.raises(UsageError, match=r"19 tokens.*max_length is 18"):
            by_segments(model, a_text(1, 24), network, [5, 19])
        _, state = model.step(a_text(1, 10), model.start(network))
        with pytest.raises(UsageError, match=r"20 tokens.*max_length is 18"):
            model.step(a_text(1, 10), state)

    @pytest.mark.parametrize(
        "settings",
        [{"positions": "sinusoidal"}, {"positions": "learned"}, {"relative_positions": 0}],
    )
    def test_a_model_that_cannot_tell_segments_apart(self, settings: dict[str, Any]) -> None:
        model = random_memory_model(**settings)
        model(a_text(1, 4), remembering(0), a_text(1, 4))
        with pytest.raises(UsageError, match="memory of earlier segments needs relative_positions"):
            model(a_text(1, 4), remembering(3))


def stream(count: int) -> StreamSplit:
    return StreamSplit(TokenRows.of([a_text(1, count)[0].tolist()]), count, count)


def loss_of(
    model: LanguageModel, network: Architecture, max_tokens: int, length: int, count: int = 50
) -> float:
    """The summed loss of a text, read in lanes with carried state, as evaluation does."""
    state, total = model.start(network), 0.0
    decoder = decoder_of(network)
    warm_up = len(decoder.layers) * -(-decoder.memory_length // length)
    for batch in recurrent_batches(stream(count), max_tokens, length, warm_up):
        logits, state = model.step(batch.inputs, state.next_segment())
        total += summed(logits, batch)
    return total


def summed(logits_BTV: Tensor, batch: StreamBatch) -> float:
    found = F.cross_entropy(logits_BTV[batch.mask], batch.targets[batch.mask], reduction="sum")
    return float(found.detach())


class TestBatches:
    def test_a_lane_read_with_a_long_memory_is_whole(self) -> None:
        whole = loss_of(random_memory_model(50), remembering(0), 50, 50)
        assert loss_of(random_memory_model(), remembering(60), 5, 5) == pytest.approx(whole)
        assert loss_of(random_memory_model(), remembering(3), 5, 5) != pytest.approx(whole)

    @pytest.mark.parametrize(
        ("count", "length", "memory_length", "layers"),
        [(128, 4, 1, 3), (128, 4, 5, 1), (128, 4, 7, 3), (503, 5, 1, 1), (503, 5, 5, 3)],
    )
    def test_the_loss_is_that_of_one_lane_however_many_there_are(
        self, count: int, length: int, memory_length: int, layers: int
    ) -> None:
        model, network = random_memory_model(), remembering(memory_length, layers)
        one = loss_of(model, network, length, length, count)
        for lanes in (2, 7, 32):
            found = loss_of(model, network, lanes * length, length, count)
            assert found == pytest.approx(one, rel=1e-12)

    def test_contexts_are_those_of_the_text(self) -> None:
        """With one layer, a segment with its context costs what it does in the text."""
        model, network, total = random_memory_model(), remembering(3, 1), 0.0
        for batch in stream_batches(stream(50), 14, 7, shuffle=False, context=5):
            total += summed(model(batch.inputs, network, batch.context), batch)
        assert total == pytest.approx(loss_of(model, network, 7, 7), abs=1e-9)


def test_a_supernet_trains_networks_of_every_memory() -> None:
    """A word stands in the context, the segment asks for it: only a memory can tell."""
    torch.manual_seed(0)
    model = build_supernet(memory_space())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for update in range(60):
        words_B1 = a_text(32, 1, seed=update)
        question_B1, context_BC = torch.ones_like(words_B1), words_B1.repeat(1, 4)
        logits = [model(question_B1, remembering(m, 1), context_BC)[:, 0] for m in (0, 3, 40)]
        losses = torch.stack([F.cross_entropy(found, words_B1[:, 0]) for found in logits])
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
    without, *with_memory = losses.tolist()
    assert without > 2.0 and max(with_memory) < 1.0
