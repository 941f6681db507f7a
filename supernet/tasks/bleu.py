"""BLEU of a whole set of translations, as sacreBLEU counts it, so that numbers can be compared.

Source: Papineni et al. 2002; Post 2018, A Call for Clarity in Reporting BLEU Scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU

from search_spaces.errors import UsageError


@dataclass(frozen=True, slots=True)
class Bleu:
    """How much of the translations stands in the references.

    Attributes:
        score: BLEU, from 0 to 100.
        signature: sacreBLEU's, which names everything that the score depends on.
        precisions: share of the sequences of one to four words that stand in the reference too, in
            per cent, smoothed where none does.
        brevity_penalty: factor for translations that are too short, from 0 to 1.
        hypothesis_length: words and punctuation marks of the translations.
        reference_length: of the references.
    """

    score: float
    signature: str
    precisions: tuple[float, ...]
    brevity_penalty: float
    hypothesis_length: int
    reference_length: int


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Bleu:
    """BLEU of translations with one reference each.

    Args:
        hypotheses: translations, as text and not as tokens: sacreBLEU splits words itself (13a).
        references: what they should be, line by line; a line may be empty.

    Raises:
        UsageError: when there are no lines, not as many of one as of the other, or no word at all
            in the references.
    """
    if len(hypotheses) != len(references):
        raise UsageError(
            f"there are {len(hypotheses)} translations and {len(references)} references; BLEU "
            "needs them line by line"
        )
    if not any(line.strip() for line in references):
        raise UsageError("BLEU needs at least one reference with a word in it; there is none")
    # `force` only leaves out a warning, for text whose full stops stand alone. Translations are
    # spaced like the references that the network learnt from, whatever those look like.
    metric = BLEU(force=True)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Bleu(
        score=min(result.score, 100.0),  # rounding takes a perfect score above it
        signature=str(metric.get_signature()),
        precisions=tuple(result.precisions),
        brevity_penalty=result.bp,
        hypothesis_length=result.sys_len,
        reference_length=result.ref_len,
    )
