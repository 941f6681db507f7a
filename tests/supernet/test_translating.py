"""Translating rows and lines: what beam search alone gives, in the given order, in any batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from search_spaces.errors import DataError, DivergedError, UsageError
from search_spaces.settings import ModelSettings, TokenInput
from supernet.beam_search import BeamSettings, beam_search
from supernet.building import build_supernet
from supernet.data.tokenizer import BOS, EOS, PAD, SentencePieceTokenizer, WordTokenizer, learn
from supernet.extraction import StandAlone, extract
from supernet.sequence_models import TranslationModel
from supernet.tasks import translating
from supernet.tasks.translating import StepwiseTranslator, translate_lines, translate_rows
from tests.support.decoder_cases import SETTINGS, TEXT, translation_space, translator
from tests.support.supernet_cases import randomised

BEAM = BeamSettings(beam_size=3)
# What decoding the longest row of TEXT takes: 18 positions, 3 beams.
ONE_ROW = 3 * 18
ROWS = [[5, 3], [], [4] * 17, [7, 8, 9], [3], [6, 3, 8, 8, 4], [], [9, 4, 5], [5, 3]]
BATCHES = [ONE_ROW, 2 * ONE_ROW, 4 * ONE_ROW, 10**6]


def small(settings: ModelSettings = TEXT) -> StepwiseTranslator:
    """A random network in a supernet, in fp64, whose texts depend on the sources."""
    model = build_supernet(translation_space(settings))
    randomised(model, seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(0.0 if name.endswith("bias") else 2.0 ** (parameter.dim() == 2))
    kinds = ("omni", "softmax", "linear"), ("linear", "softmax", "omni")
    return StepwiseTranslator(model.eval(), translator(*kinds))


def translated(
    model: StepwiseTranslator,
    rows: list[list[int]],
    settings: BeamSettings = BEAM,
    max_tokens: int = 4096,
    device: str = "cpu",
) -> list[tuple[int, ...]]:
    return translate_rows(model, rows, settings, max_tokens=max_tokens, device=device)


@torch.inference_mode()
def alone(model: StepwiseTranslator, row: list[int], settings: BeamSettings) -> tuple[int, ...]:
    """A row's translation by beam search, without anything around it."""
    found = beam_search(
        model.model.step,
        model.model.start(torch.tensor([[*row, EOS]]), model.architecture),
        [len(row) + 1],
        bos=BOS,
        eos=EOS,
        max_length=TEXT.max_length,
        settings=settings,
    )
    return found[0][0].tokens


class TestRows:
    @pytest.mark.parametrize("number", range(len(SETTINGS)), ids=SETTINGS.keys())
    def test_equal_beam_search_alone_in_any_batches(self, number: int) -> None:
        model = small(list(SETTINGS.values())[number])
        rows = [[token % 9 or 3 for token in row] for row in ROWS]
        expected = [alone(model, row, BEAM) if row else () for row in rows]
        assert len(set(expected)) > 4
        for max_tokens in BATCHES[number % 2 :: 2]:
            assert translated(model, rows, max_tokens=max_tokens) == expected, max_tokens

    @pytest.mark.parametrize(
        "settings",
        [
            BeamSettings(1),
            BeamSettings(5, length_penalty=2.0),
            BeamSettings(2, max_length_factor=0.0, max_length_offset=4, min_length=2),
        ],
    )
    def test_the_beam_settings_are_kept(self, settings: BeamSettings) -> None:
        model = small()
        expected = [alone(model, row, settings) if row else () for row in ROWS]
        assert translated(model, ROWS, settings) == expected

    def test_the_order_is_the_given_one(self) -> None:
        model = small()
        forward = translated(model, ROWS)
        assert translated(model, ROWS[::-1]) == forward[::-1]

    def test_a_network_on_its_own_equals_the_one_in_the_supernet(self) -> None:
        model = small()
        cut = StepwiseTranslator.of(extract(model.model, model.architecture))
        assert translated(cut, ROWS) == translated(model, ROWS)

    @pytest.mark.parametrize("rows", [[], [[]], [[], [], []]])
    def test_nothing_to_translate(self, rows: list[list[int]]) -> None:
        assert translated(small(), rows) == [()] * len(rows)

    def test_only_known_words_are_written(self) -> None:
        model = small()
        free = translated(model, ROWS)
        known = translated(replace(model, num_words=6), ROWS)
        assert max(map(max, filter(None, free))) > 5
        assert max(map(max, filter(None, known))) <= 5


class TestBatches:
    def sizes(
        self, monkeypatch: pytest.MonkeyPatch, max_tokens: int, rows: list[list[int]] = ROWS
    ) -> list[tuple[int, int]]:
        """Rows and width of every batch of sources, end marks included."""
        seen: list[tuple[int, int]] = []

        def spy(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
            matrix, mask = source_batch(rows)
            seen.append((matrix.shape[0], matrix.shape[1]))
            return matrix, mask

        source_batch = translating.source_batch
        monkeypatch.setattr(translating, "source_batch", spy)
        translated(small(), rows, max_tokens=max_tokens)
        return seen

    def test_similar_lengths_go_together_the_longest_first(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """2 tokens may give 12, and 4 give 14: five rows of at most 14 fit where 18 fit 4 times."""
        assert self.sizes(monkeypatch, 4 * ONE_ROW) == [(4, 18), (3, 3)]
        widths = [18, 6, 4, 4, 3, 3, 2]
        assert self.sizes(monkeypatch, ONE_ROW) == [(1, width) for width in widths]

    def test_also_where_the_translations_may_be_equally_long(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = [[3] * length for length in (11, 17, 9, 15)]
        assert self.sizes(monkeypatch, 2 * ONE_ROW, rows) == [(2, 18), (2, 12)]

    def test_all_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.sizes(monkeypatch, 10**6) == [(7, 18)]

    def test_one_token_less_than_a_row_takes_is_refused(self) -> None:
        with pytest.raises(UsageError, match="line 3, which takes 54 with 3 beams"):
            translated(small(), ROWS, max_tokens=ONE_ROW - 1)


class TestMode:
    def test_dropout_is_off_and_training_goes_on(self) -> None:
        model = small()
        expected = translated(model, ROWS)
        for module in model.model.modules():
            if hasattr(module, "rate"):
                module.rate = 0.9
        model.model.train()
        assert translated(model, ROWS) == expected
        assert all(module.training for module in model.model.modules())

    def test_evaluation_stays_evaluation(self) -> None:
        model = small()
        translated(model, ROWS)
        assert not any(module.training for module in model.model.modules())

    def test_training_goes_on_after_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = small()
        model.model.train()

        def broken(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(translating, "source_batch", broken)
        with pytest.raises(KeyboardInterrupt):
            translated(model, ROWS)
        assert model.model.training


class TestBadInput:
    def test_a_row_as_long_as_the_model_is_translated(self) -> None:
        assert translated(small(), [[3] * 17])[0]

    def test_a_longer_one_is_refused_by_its_line(self) -> None:
        with pytest.raises(UsageError, match=r"line 3 has 19 tokens .* at most 18"):
            translated(small(), [[3], [], [3] * 18])

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    @pytest.mark.parametrize("settings", [BeamSettings(), BeamSettings(1, min_length=3)])
    def test_outputs_that_are_no_numbers(self, value: float, settings: BeamSettings) -> None:
        model = small()
        torch.nn.init.constant_(model.model.tables[-1].weight, value)
        with pytest.raises(DivergedError, match="not finite"):
            translated(model, [[3], [4]], settings)

    def test_outputs_that_are_no_numbers_for_one_word_of_one_row(self) -> None:
        model = small()
        with torch.no_grad():
            model.model.tables[0].weight[5] = torch.nan
        with pytest.raises(DivergedError, match="not finite"):
            translated(model, [[3, 4], [4, 5], [3, 3]])
        assert translated(model, [[3, 4], [3, 3]])


# -- a network that knows its few sentences by heart --------------------------------------------

SAID = WordTokenizer(["one", "two", "three"])
MEANT = WordTokenizer(["drei", "eins", "zwei"])
LEARNT = {
    "one": "eins",
    "two three": "drei zwei",
    "three one two": "zwei eins drei",
    "one one": "eins eins eins",
    "three": "drei drei",
    "two one three two": "eins",
}
TOY = replace(TEXT, input=TokenInput(7, 7))


@pytest.fixture(scope="module")
def memorised() -> StepwiseTranslator:
    """Trained on `LEARNT` until it is right."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = StandAlone(
            TranslationModel, TOY, translator(("softmax",), ("softmax",), connect=1)
        )
    source = _matrix(SAID.encode(list(LEARNT)))
    target = _matrix([[BOS, *row] for row in MEANT.encode(list(LEARNT.values()))])
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(80):
        logits = network(source, target[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, target[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    return StepwiseTranslator.of(network)


def _matrix(rows: list[list[int]]) -> Tensor:
    """The rows, ended and padded."""
    ended = [torch.tensor([*row, EOS]) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(ended, batch_first=True)


def lines_of(model: StepwiseTranslator, lines: list[str], max_tokens: int = 4096) -> list[str]:
    return translate_lines(model, lines, SAID, MEANT, BEAM, max_tokens=max_tokens, device="cpu")


class TestLines:
    def test_what_was_learnt_is_said(self, memorised: StepwiseTranslator) -> None:
        lines = [*LEARNT, "", "one", "  ", *reversed(LEARNT)]
        expected = [LEARNT.get(line, "") for line in lines]
        for max_tokens in BATCHES:
            assert lines_of(memorised, lines, max_tokens) == expected

    def test_no_lines(self, memorised: StepwiseTranslator) -> None:
        assert lines_of(memorised, []) == []

    def test_unknown_words_give_some_translation(self, memorised: StepwiseTranslator) -> None:
        (text,) = lines_of(memorised, ["one hundred"])
        assert text

    def test_tokens_that_the_tokenizer_lacks_are_not_written(self) -> None:
        """The network has 9 target tokens, its tokenizer 6."""
        few = WordTokenizer(["ja", "nein"])
        lines = ["one two", "three", "two"]
        texts = translate_lines(small(), lines, SAID, few, BEAM, max_tokens=999, device="cpu")
        assert {word for text in texts for word in text.split()} <= {"ja", "nein", "<unk>"}

    def test_lines_of_a_sentencepiece_vocabulary(self) -> None:
        """Lines that hold nothing for it stay empty, wherever they stand."""
        pieces = SentencePieceTokenizer(learn(["ab abba", "ba"], 11, "bpe", "the text"))
        settings = replace(TEXT, input=TokenInput(11, 20))
        texts = translate_lines(
            small(settings),
            ["", "ab", "\t ", "ba"],
            pieces,
            pieces,
            BEAM,
            max_tokens=999,
            device="cpu",
        )
        assert [bool(text) for text in texts] == [False, True, False, True]

    def test_a_tokenizer_of_other_data_is_refused(self) -> None:
        many = WordTokenizer([f"w{n}" for n in range(6)])
        with pytest.raises(DataError, match="target tokenizer has 10 tokens, .* network has 9"):
            translate_lines(small(), ["one"], SAID, many, BEAM, max_tokens=999, device="cpu")
        larger = WordTokenizer([f"w{n}" for n in range(8)])
        with pytest.raises(DataError, match="source tokenizer has 12 tokens, .* network has 11"):
            translate_lines(small(), ["one"], larger, MEANT, BEAM, max_tokens=999, device="cpu")

    @pytest.mark.gpu
    def test_on_cuda_in_bfloat16(self, memorised: StepwiseTranslator) -> None:
        moved = replace(memorised, model=memorised.model.to("cuda"))
        try:
            found = translate_lines(
                moved, list(LEARNT), SAID, MEANT, BEAM, max_tokens=4096, device="cuda"
            )
        finally:
            memorised.model.to("cpu")
        assert found == list(LEARNT.values())
