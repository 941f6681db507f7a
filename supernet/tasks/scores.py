"""What a network is worth on a split, in the numbers that its task is known by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.architecture import Architecture
from supernet.beam_search import BeamSettings
from supernet.data.prepared import PairSplit
from supernet.data.tokenizer import join_words
from supernet.extraction import Supernet
from supernet.sequence_models import TranslationModel
from supernet.tasks.base import Task
from supernet.tasks.bleu import Bleu, corpus_bleu
from supernet.tasks.evaluation import evaluate
from supernet.tasks.language_modelling import LanguageModellingTask
from supernet.tasks.translating import StepwiseTranslator, translate_lines
from supernet.tasks.translation import TranslationTask

DECODING_TOKENS = 16_384
MOST_NATS = 700.0  # a larger exponent has no finite power


@dataclass(frozen=True)
class Scores:
    """A network's scores on a split.

    Attributes:
        values: name → value: ``loss`` (nats per prediction) and ``accuracy`` for every task; with
            a ``bleu`` for translation; ``perplexity`` (per token) for both tasks on texts, and for
            language models ``perplexity_per_word``, ``bits_per_character`` and
            ``word_perplexity``. Per word is the published convention: all tokens' nats are shared
            out among the words and the ends of lines, as papers on WikiText-103 count its <eos>.
            ``word_perplexity`` shares the same nats out among the words alone and so is larger the
            shorter the lines are; it stays for comparison with results of older versions.
        headline: the name that the task is known by.
        count: predictions.
        bleu_signature: sacreBLEU's; translation only.
    """

    values: Mapping[str, float]
    headline: str
    count: int
    bleu_signature: str | None = field(default=None)


def score(
    task: Task[Any, Any],
    model: Supernet,
    architecture: Architecture,
    split: Any,
    *,
    device: str = "cpu",
    beam: BeamSettings | None = None,
    max_tokens: int = DECODING_TOKENS,
) -> Scores:
    """Score a network of a model on a split of its task.

    Args:
        task: the task.
        model: the weights, on `device`.
        architecture: the network.
        split: of the task.
        device: where to compute.
        beam: how translations are searched for; the usual beam of 4 if not given.
        max_tokens: tokens of a batch that is translated, see `translate_lines`.

    Raises:
        DivergedError: when a translation network's outputs are not finite numbers.
    """
    found = evaluate(task, model, architecture, split, device=device)
    values = {"loss": found.loss, "accuracy": found.accuracy}
    if isinstance(task, TranslationTask):
        bleu = split_bleu(task, model, architecture, split, device, beam, max_tokens)
        values |= {"perplexity": _perplexity(found.loss), "bleu": bleu.score}
        return Scores(values, "bleu", found.count, bleu.signature)
    if isinstance(task, LanguageModellingTask):
        nats = found.loss * found.count
        values["perplexity"] = _perplexity(found.loss)
        values["perplexity_per_word"] = _perplexity(nats / (split.num_words + len(split.rows)))
        values["word_perplexity"] = _perplexity(nats / max(split.num_words, 1))
        values["bits_per_character"] = nats / math.log(2.0) / max(split.num_characters, 1)
        return Scores(values, "perplexity", found.count)
    return Scores(values, "accuracy", found.count)


def _perplexity(nats: float) -> float:
    """Finite, so that it can be written down: a network that has diverged has a huge one."""
    return math.exp(min(MOST_NATS, nats))


def split_bleu(
    task: TranslationTask,
    model: Supernet,
    architecture: Architecture,
    split: PairSplit,
    device: str,
    beam: BeamSettings | None = None,
    max_tokens: int = DECODING_TOKENS,
) -> Bleu:
    """BLEU of a network's translations of a split, which has to have its text.

    Arguments and errors as for `score`.
    """
    assert isinstance(model, TranslationModel)
    lines = translate_lines(
        StepwiseTranslator(model, architecture),
        split.source_lines,
        task.source_tokenizer,
        task.target_tokenizer,
        beam or BeamSettings(),
        max_tokens=max_tokens,
        device=device,
    )
    return corpus_bleu([join_words(line, task.post_process) for line in lines], split.target_lines)
