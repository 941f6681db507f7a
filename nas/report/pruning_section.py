"""What was cut from the space, on what evidence, and what stayed in spite of it."""

from __future__ import annotations

from collections.abc import Sequence

from nas.objectives import OBJECTIVES, QUALITY
from nas.report import words
from nas.report.markup import Html, cell, join, missing, paragraph, section, table, tag
from nas.request.protected_choices import spelled
from nas.results.contents import PruningAudit, RunContents
from nas.search.pruning.cuts import Cut
from nas.search.pruning.evidence import Evidence
from nas.search.pruning.prune import Kept, PruningSettings


def pruning_section(run: RunContents) -> Html:
    """The audit of the pruning."""
    title = "What pruning cut"
    audit = run.audit
    if audit is None:
        return section("pruning", title, missing("The space was not pruned."))
    intro = paragraph(
        "Before the evolution, choices are cut that the best predicted networks of every size do "
        "without. A cut counts only when the space that remains still reaches as far as before."
    )
    parts = [intro, _rules(run, audit), _verdict(run, audit)]
    if audit.cuts:
        parts += [_cuts(run, audit.cuts), _explanation(run)]
    if audit.kept:
        parts.append(_kept(run, audit.kept))
    return section("pruning", title, *parts)


def _rules(run: RunContents, audit: PruningAudit) -> Html:
    """What the ranker must reach before anything is cut, and what was asked to be kept."""
    least = PruningSettings(min_pairwise_accuracy=run.spec.budget.min_pairwise_accuracy)
    trust = (
        "Nothing is cut unless the ranker, on networks it has not seen, reaches a Kendall τ of "
        f"{least.min_kendall_tau:g} and {words.percent(least.min_pairwise_accuracy)} of the pairs "
        "in the right order. A choice that the best observed networks have stays, and so does the "
        "last choice of a gene. "
    )
    kept = spelled(run.space, audit.protected) if audit.protected else []
    if not kept:
        return paragraph(trust)
    listed = join([tag("code", f"{text} ") for text in kept])
    return paragraph(trust, "Asked to be kept: ", listed)


def _verdict(run: RunContents, audit: PruningAudit) -> Html:
    whole = run.spec.domain.size
    if audit.refused:
        return paragraph(tag("strong", "Nothing was cut. "), audit.refused)
    if not audit.cuts:
        return paragraph(
            tag("strong", "Nothing was cut. "), "Every choice is of use to some of the best."
        )
    return paragraph(
        tag("strong", f"{words.plural(len(audit.cuts), 'choice')} cut. "),
        f"{words.count(audit.size)} of {words.count(whole)} networks remain "
        f"({words.percent(audit.size / whole)}).",
    )


def _cuts(run: RunContents, cuts: Sequence[Cut]) -> Html:
    heads = ["cut", "among all", "among the best", *_effect_heads(run), "reach kept", "space left"]
    rows = [
        [
            cell(words.choice(cut.name, cut.choice, run.both_stacks)),
            *_evidence(run, cut.evidence),
            cell(words.percent(cut.hypervolume_ratio), cut.hypervolume_ratio),
            cell(words.percent(cut.share), cut.share),
        ]
        for cut in cuts
    ]
    return table(heads, rows, "Cuts, in the order they were made.")


def _kept(run: RunContents, kept: Sequence[Kept]) -> Html:
    heads = ["kept all the same", "among all", "among the best", *_effect_heads(run), "because"]
    rows = [
        [
            cell(words.choice(one.name, one.choice, run.both_stacks)),
            *_evidence(run, one.evidence),
            cell(one.reason),
        ]
        for one in kept
    ]
    return table(heads, rows, "Choices that the best networks rarely have and that stay.")


def _effect_heads(run: RunContents) -> list[str]:
    names = [f"effect on {_minimised(run, name)}" for name in run.spec.objectives]
    return [*names, f"observed effect on {'loss' if run.by_loss else words.metric(run, QUALITY)}"]


def _minimised(run: RunContents, name: str) -> str:
    """What effects on an objective are told in: of a rate, the time of one."""
    called = words.metric(run, name)
    return f"ms for one ({called})" if OBJECTIVES[name].maximise else called


def _evidence(run: RunContents, facts: Evidence) -> list[Html]:
    effects = facts.predicted_effects
    predicted = [
        _effect(name, effects[place] if place < len(effects) else None)
        for place, name in enumerate(run.spec.objectives)
    ]
    return [
        cell(words.percent(facts.lift.sampled_share), facts.lift.sampled_share),
        cell(words.percent(facts.lift.elite_share), facts.lift.elite_share),
        *predicted,
        _effect(QUALITY, facts.observed_effect),
    ]


def _effect(name: str, effect: float | None) -> Html:
    if effect is None:
        return cell("–")
    sign = "+" if effect >= 0 else "−"
    return cell(sign + words.value(name, abs(effect)), effect)


def _explanation(run: RunContents) -> Html:
    mean = f"mean {'loss' if run.by_loss else words.metric(run, QUALITY)}"
    return tag(
        "p",
        "Among all / among the best: how often the choice occurs in a random sample of the space, "
        "and in its best twentieth. Effect: what the choice changes in otherwise equal networks, "
        f"predicted (lower is better). Observed effect: {mean} of the observed networks with "
        "the choice minus those without, which may differ in size too. Reach kept: how much of "
        "the hypervolume of the predicted front the remaining space still covers.",
        class_="small",
    )
