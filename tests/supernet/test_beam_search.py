"""Beam search against a slow twin, greedy decoding, exhaustive search and known toy texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from search_spaces.errors import UsageError
from supernet.beam_search import (
    MOST_PENALTY,
    BeamSettings,
    Hypothesis,
    beam_search,
    write_exactly,
)
from tests.support.decoder_cases import SETTINGS, TEXT, random_translator, sources, translator

PAD, BOS, EOS = 0, 1, 2

# tokens written so far -> log-probabilities of the next one
Rule = Callable[[tuple[int, ...]], Tensor]


@dataclass(frozen=True)
class Written:
    """A state that remembers every row's sentence and tokens."""

    rows: tuple[tuple[int, tuple[int, ...]], ...]
    sentences: tuple[int, ...]

    def reorder(self, rows: Tensor) -> Written:
        return replace(self, rows=tuple(self.rows[row] for row in rows.tolist()))

    def keep_sources(self, sources: Tensor) -> Written:
        return replace(self, sentences=tuple(self.sentences[s] for s in sources.tolist()))


def model_of(rules: Sequence[Rule]) -> Callable[[Tensor, Written], tuple[Tensor, Written]]:
    """A step function that follows a rule for each sentence, and checks who is whose row."""

    def step(tokens: Tensor, state: Written) -> tuple[Tensor, Written]:
        beams = len(tokens) // len(state.sentences)
        before = state.rows or tuple((s, ()) for s in state.sentences for _ in range(beams))
        assert [s for s, _ in before] == [s for s in state.sentences for _ in range(beams)]
        after = tuple(
            (s, (*text, int(t))) for (s, text), t in zip(before, tokens[:, 0], strict=True)
        )
        logits = torch.stack([rules[s](text[1:]) for s, text in after])
        return logits[:, None], replace(state, rows=after)

    return step


def search(
    rules: Sequence[Rule], settings: BeamSettings, length: int = 5
) -> list[list[Hypothesis]]:
    """Beam search over rules, texts of up to `length` tokens with the end symbol."""
    settings = replace(settings, max_length_factor=0.0, max_length_offset=length)
    state = Written((), tuple(range(len(rules))))
    ones = [1] * len(rules)
    return beam_search(
        model_of(rules), state, ones, bos=BOS, eos=EOS, max_length=99, settings=settings
    )


def random_rule(seed: int, vocab: int = 6) -> Rule:
    """Next-token probabilities that depend on everything before."""

    def rule(text: tuple[int, ...]) -> Tensor:
        key = hash((seed, *text)) % 2**31
        scores = torch.randn(vocab, generator=torch.Generator().manual_seed(key)) * 2.0
        scores[BOS] = -torch.inf
        return scores

    return rule


def allowed(rule: Rule, text: tuple[int, ...], length: int) -> dict[int, float]:
    """Log-probabilities of what may follow, by token."""
    log = rule(text).log_softmax(dim=-1).tolist()
    if len(text) + 1 >= length:
        return {EOS: log[EOS]}
    return {
        token: value
        for token, value in enumerate(log)
        if token not in (PAD, BOS) and (text or token != EOS)
    }


def naive_beam(rule: Rule, settings: BeamSettings, length: int) -> list[tuple[int, ...]]:
    """The rules in words, one sentence at a time, with lists."""
    going: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    done: list[tuple[float, tuple[int, ...]]] = []
    while going and len(done) < settings.beam_size:
        options = [
            (score + value, text, token)
            for text, score in going
            for token, value in allowed(rule, text, length).items()
        ]
        options.sort(key=lambda option: -option[0])
        for score, text, token in options[: settings.beam_size]:
            if token == EOS:
                done.append((score / (len(text) + 1) ** settings.length_penalty, text))
        on = [((*text, token), score) for score, text, token in options if token != EOS]
        going = on[: settings.beam_size]
    done.sort(key=lambda one: -one[0])
    return [text for _, text in done[: settings.beam_size]]


def every_text(rule: Rule, settings: BeamSettings, length: int) -> tuple[int, ...]:
    """The best of all texts there are."""
    best = (-math.inf, ())
    for size in range(1, length):
        for text in product((3, 4, 5), repeat=size):
            total = 0.0
            for n, token in enumerate((*text, EOS)):
                total += allowed(rule, text[:n], length)[token]
            best = max(best, (total / (size + 1) ** settings.length_penalty, text))
    return best[1]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 1.5])
@pytest.mark.parametrize("beam", [1, 2, 4, 7])
def test_equals_the_naive_twin(beam: int, penalty: float) -> None:
    settings = BeamSettings(beam_size=beam, length_penalty=penalty)
    rules = [random_rule(seed) for seed in range(6)]
    for length in (1, 3, 8):
        found = search(rules, settings, length)
        expected = [naive_beam(rule, settings, length) for rule in rules]
        assert [[one.tokens for one in texts] for texts in found] == expected


def test_one_beam_is_greedy() -> None:
    for seed in range(8):
        rule, text = random_rule(seed), ()
        while True:
            options = allowed(rule, text, 7)
            token = max(options, key=lambda t: options[t])
            if token == EOS:
                break
            text = (*text, token)
        assert search([rule], BeamSettings(beam_size=1), 7)[0][0].tokens == text


@pytest.mark.parametrize("penalty", [-0.5, 0.0, 0.6, 2.0])
def test_beams_for_all_texts_find_the_best_there_is(penalty: float) -> None:
    settings = BeamSettings(beam_size=3 + 9 + 27 + 81, length_penalty=penalty)
    rules = [random_rule(seed) for seed in range(5)]
    found = search(rules, settings, 5)
    assert [texts[0].tokens for texts in found] == [every_text(r, settings, 5) for r in rules]


def toy(text: tuple[int, ...]) -> Tensor:
    """3 looks best at first (0.6), but 4 (0.4) leads to a text that is certain."""
    table = {
        (): {3: 0.6, 4: 0.4},
        (3,): {3: 0.5, 4: 0.5},
        (4,): {5: 1.0},
    }
    odds = table.get(text, {EOS: 1.0})
    return torch.tensor([odds.get(token, 0.0) for token in range(6)]).log()


def test_a_toy_text_that_greedy_decoding_misses() -> None:
    greedy = search([toy], BeamSettings(beam_size=1))[0]
    assert greedy[0].tokens[0] == 3 and greedy[0].log_probability == pytest.approx(math.log(0.3))
    best = search([toy], BeamSettings(beam_size=2, length_penalty=0.6))[0][0]
    assert best.tokens == (4, 5)
    assert best.log_probability == pytest.approx(math.log(0.4))
    assert best.score == pytest.approx(math.log(0.4) / 3**0.6)


def short_or_long(text: tuple[int, ...]) -> Tensor:
    """``3`` with 0.5, or ``4 4 4 4`` with 0.45."""
    if text == ():
        return torch.tensor([0.0, 0.0, 0.0, 0.5, 0.5, 0.0]).log()
    if text[0] == 4 and len(text) < 4:
        return torch.tensor([0.0, 0.0, 0.035, 0.0, 0.965, 0.0]).log()
    return torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0]).log()


@pytest.mark.parametrize(("penalty", "text"), [(0.0, (3,)), (1.0, (4, 4, 4, 4))])
def test_the_penalty_decides_between_short_and_long(penalty: float, text: tuple[int, ...]) -> None:
    settings = BeamSettings(beam_size=6, length_penalty=penalty)
    assert search([short_or_long], settings, 8)[0][0].tokens == text


def late(text: tuple[int, ...]) -> Tensor:
    """Three short texts end soon; one in fifty starts with 4, and is certain from there on."""
    table = {(): {3: 0.49, 4: 0.02, 5: 0.49}, (3,): {EOS: 0.5, 5: 0.5}}
    certain = {4: 1.0} if text[:1] == (4,) else {EOS: 1.0}
    odds = table.get(text, certain)
    return torch.tensor([odds.get(token, 0.0) for token in range(6)]).log()


def test_a_long_text_comes_too_late_once_enough_have_ended() -> None:
    def ending(text: tuple[int, ...]) -> Tensor:
        return torch.eye(6)[EOS].log() if len(text) == 19 else late(text)

    settings = BeamSettings(beam_size=3, length_penalty=1.0)
    assert search([ending], settings, 20)[0][0].tokens[0] == 5


def test_sentences_of_a_batch_do_not_meet() -> None:
    """Also when some are done early and leave the batch."""
    rules = [random_rule(0), toy, random_rule(1), short_or_long, random_rule(2)]
    settings = BeamSettings(beam_size=3)
    together = search(rules, settings, 7)
    assert together == [search([rule], settings, 7)[0] for rule in rules]
    assert len({len(texts[0].tokens) for texts in together}) > 1


class TestLimits:
    def test_longest_text(self) -> None:
        settings = BeamSettings(max_length_factor=1.5, max_length_offset=4)
        assert [settings.longest(n, 20) for n in (0, 2, 5, 50)] == [4, 7, 11, 20]

    def test_each_sentence_has_its_own(self) -> None:
        def endless(text: tuple[int, ...]) -> Tensor:
            return torch.tensor([0.0, 0.0, 1e-9, 0.6, 0.4, 0.0]).log()

        found = beam_search(
            model_of([endless] * 3),
            Written((), (0, 1, 2)),
            [1, 9, 4],
            bos=BOS,
            eos=EOS,
            max_length=8,
            settings=BeamSettings(2, 1.0, 1.0, 2),
        )
        assert [max(len(one.tokens) for one in texts) for texts in found] == [2, 7, 5]

    def test_padding_is_never_written_and_no_text_is_empty(self) -> None:
        def bad(text: tuple[int, ...]) -> Tensor:
            return torch.tensor([9.0, -9.0, 5.0, 1.0, 0.0, 0.0])

        texts = search([bad], BeamSettings(beam_size=3))[0]
        assert texts and all(one.tokens and PAD not in one.tokens for one in texts)
        empty = search([bad], BeamSettings(beam_size=3, min_length=0))[0]
        assert () in {one.tokens for one in empty}

    def test_no_sentences(self) -> None:
        assert search([], BeamSettings()) == []

    @pytest.mark.parametrize("change", [{"beam_size": 0}, {"min_length": -1}])
    def test_nonsense_is_refused(self, change: dict[str, int]) -> None:
        with pytest.raises(UsageError, match="at least 1 and 0"):
            BeamSettings(**change)  # type: ignore[arg-type]

    @pytest.mark.parametrize("penalty", [10.5, 1000.0, -11.0, math.inf, math.nan])
    def test_a_penalty_that_leaves_long_texts_without_a_score_is_refused(
        self, penalty: float
    ) -> None:
        assert -1.0 < BeamSettings(length_penalty=MOST_PENALTY).score(-3.0, 10**6) < 0.0
        with pytest.raises(UsageError, match=f"{penalty:g}; give a number from 0 to 10"):
            BeamSettings(length_penalty=penalty)


@pytest.mark.parametrize("settings", [TEXT, SETTINGS["relative keys, post-norm"]])
@pytest.mark.parametrize("beam", [1, 4])
def test_with_a_model_every_text_has_the_score_of_a_whole_pass(settings, beam) -> None:  # type: ignore[no-untyped-def]
    model, source = random_translator(settings), sources(settings)
    architecture = translator(("omni", "softmax", "linear"), ("linear", "softmax", "omni"))
    state = model.start(source, architecture)
    found = beam_search(
        model.step,
        state,
        [14, 9, 5],
        bos=BOS,
        eos=EOS,
        max_length=16,
        settings=BeamSettings(beam_size=beam),
    )
    for row, texts in enumerate(found):
        assert texts and [one.score for one in texts] == sorted(o.score for o in texts)[::-1]
        for one in texts:
            target = torch.tensor([[BOS, *one.tokens]])
            log = model(source[row : row + 1], target, architecture)[0].log_softmax(dim=-1)
            total = sum(float(log[n, t].detach()) for n, t in enumerate((*one.tokens, EOS)))
            assert one.log_probability == pytest.approx(total, abs=1e-4)


# -- how often the device is waited for ---------------------------------------------------------

WAITS = {
    "tolist",
    "item",
    "cpu",
    "numpy",
    "nonzero",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
}


class Waits(TorchFunctionMode):
    """Counts what waits for a graphics card, by the steps of the model that came before."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps = 0
        self.found: Counter[int] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in WAITS:
            self.found[self.steps] += 1
        return func(*args, **(kwargs or {}))

    def stepping(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step, counted."""

        def counted(*given: Any) -> Any:
            self.steps += 1
            return step(*given)

        return counted


def translated(waits: Waits, settings: BeamSettings, seed: int = 0) -> list[list[Hypothesis]]:
    """Three sentences by a model with random weights."""
    torch.manual_seed(seed)
    model, source = random_translator(TEXT), sources(TEXT)
    state = model.start(source, translator(("softmax", "linear"), ("linear", "softmax")))
    step = waits.stepping(model.step)
    lengths = [14, 9, 5]
    with waits:
        return beam_search(step, state, lengths, bos=BOS, eos=EOS, max_length=16, settings=settings)


@pytest.mark.parametrize("beam", [1, 4])
def test_each_token_is_waited_for_once(beam: int) -> None:
    waits = Waits()
    found = translated(waits, BeamSettings(beam_size=beam))
    assert all(found) and waits.found[0] == waits.found[1] == 0  # no text is empty
    for step in range(2, waits.steps):
        assert waits.found[step] == 1
    longest = max(len(one.tokens) for texts in found for one in texts)
    assert waits.found[waits.steps] >= 2 and longest <= waits.steps  # and the texts


def test_nothing_is_waited_for_while_no_text_may_end() -> None:
    waits = Waits()
    settings = BeamSettings(3, min_length=11, max_length_factor=0.0, max_length_offset=12)
    found = translated(waits, settings)
    assert {step for step, count in waits.found.items() if count} == {12}
    assert {len(one.tokens) for texts in found for one in texts} == {11}


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_texts_of_one_length_are_those_of_the_search(beam: int, length: int) -> None:
    """Also where the minimum is beyond what a text may have."""
    rules, waits = [random_rule(seed) for seed in range(4)], Waits()
    settings = BeamSettings(beam, 0.0, min_length=length)
    state = Written((), tuple(range(len(rules))))
    expected = search(rules, settings, length)
    marks = {"bos": BOS, "eos": EOS, "pad": PAD}
    tokens, log_probabilities = write_exactly(
        model_of(rules), state, len(rules), length, beam_size=beam, **marks
    )
    assert tokens.shape[2] == length - 1
    for texts, rows, values in zip(
        expected, tokens.tolist(), log_probabilities.tolist(), strict=True
    ):
        real = [value for value in values if math.isfinite(value)]
        assert [one.log_probability for one in texts] == real
        assert [list(one.tokens) for one in texts] == rows[: len(real)]
    with waits:
        write_exactly(
            lambda given, state: (torch.ones(len(given), 1, 6), state),
            Still(),
            3,
            length,
            beam_size=beam,
            **marks,
        )
    assert not waits.found


class Still:
    """A state of nothing."""

    def reorder(self, rows: Tensor) -> Still:
        return self

    def keep_sources(self, sources: Tensor) -> Still:
        return self


@pytest.mark.gpu
def test_a_card_is_not_waited_for() -> None:
    step = lambda given, state: (torch.ones(len(given), 1, 6, device="cuda"), state)  # noqa: E731
    given = {"bos": BOS, "eos": EOS, "beam_size": 4, "device": "cuda"}
    write_exactly(step, Still(), 3, 9, **given)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        tokens, _ = write_exactly(step, Still(), 3, 9, **given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert tokens.shape == (3, 4, 8)
