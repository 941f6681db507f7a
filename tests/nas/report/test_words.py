"""Numbers and names in the report are ones that people read."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nas.report import words
from nas.report.charts import axis, chart
from nas.report.markup import Html, join, table, tag
from search_spaces.encoding import feature_names
from search_spaces.loading import load_space, space_names


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (874, "874"),
        (9999, "9,999"),
        (10_000, "10.0 k"),
        (103_400, "103 k"),
        (3_310_000, "3.31 M"),
        (4.2e9, "4.20 G"),
        (1.5e13, "15.0 T"),
    ],
)
def test_counts_are_short(number: float, text: str) -> None:
    assert plain(words.whole(number)) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (25_162_920, "25,162,920"),
        (10**9 - 1, "999,999,999"),
        (10**9, "1.0 × 10⁹"),
        (4_198_400_000, "4.2 × 10⁹"),
        (10**13 - 1, "1.0 × 10¹³"),
        (3 * 10**40, "3.0 × 10⁴⁰"),
    ],
)
def test_astronomical_sizes_are_powers_of_ten(number: int, text: str) -> None:
    assert words.count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.01, "under 0.1 s"),
        (7.66, "7.7 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (70, "1 min 10 s"),
        (7260, "2 h 01 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert plain(words.duration(seconds)) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.9472, "94.7 %"),
        (0.0005, "0.05 %"),
        (0.0, "0.0 %"),
        (float("nan"), "–"),
        (-0.02, "-2.0 %"),
    ],
)
def test_shares(share: float, text: str) -> None:
    assert plain(words.percent(share)) == text


@pytest.mark.parametrize("name", space_names())
def test_every_feature_has_a_name_of_its_own_in_words(name: str) -> None:
    space = load_space(name)
    named = [words.feature(feature, len(space.stacks) > 1) for feature in feature_names(space)]
    assert len(set(named)) == len(named)
    assert [text for text in named if re.search(r"[._=*]", text)] == []


def test_unknown_features_stay_as_they_are() -> None:
    assert words.feature("something else", False) == "something else"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("encoder.ffn_dim", 8, "FFN size 8 in all layers"),
        ("encoder.2.ffn_dim", 8, "FFN size 8 in layer 3"),
        ("encoder.0.attention", "omni", "omni attention in layer 1"),
        ("encoder.num_heads", 1, "1 head in all layers"),
        ("encoder.1.num_heads", 4, "4 heads in layer 2"),
        ("encoder.embed_dim", 64, "embedding size 64"),
        ("encoder.num_layers", 4, "number of layers = 4"),
    ],
)
def test_choices(name: str, value: int | str, text: str) -> None:
    assert words.choice(name, value, both_stacks=False) == text


def test_choices_name_the_stack_where_there_are_two() -> None:
    assert words.choice("decoder.3.ffn_dim", 8, True) == "FFN size 8 in decoder layer 4"
    assert words.choice("decoder.ffn_dim", 8, True) == "FFN size 8 in all decoder layers"
    assert words.choice("encoder.embed_dim", 8, True) == "encoder embedding size 8"


@pytest.mark.parametrize(
    ("name", "task", "quality", "text"),
    [
        ("quality", "classification", "loss", "validation loss (nats)"),
        ("quality", "translation", "loss", "validation loss (nats)"),
        ("quality", "translation", "bleu", "100 − BLEU"),
        ("valid_loss", "translation", "bleu", "validation loss (nats)"),
        ("valid_bleu", "translation", "bleu", "validation BLEU"),
        ("valid_accuracy", "classification", "loss", "validation accuracy"),
        ("valid_accuracy", "translation", "loss", "validation tokens right"),
        ("valid_accuracy", "language_modelling", "loss", "validation tokens right"),
        ("latency_ms", "translation", "bleu", "latency (ms)"),
        ("params", "translation", "bleu", "parameters"),
        ("something", "translation", "bleu", "something"),
    ],
)
def test_metrics_are_called_by_what_they_are(name: str, task: Any, quality: Any, text: str) -> None:
    assert words.with_unit(name, task, quality) == text


@pytest.mark.parametrize(
    ("name", "number", "text"),
    [
        ("accuracy", 0.9806, "98.1 %"),
        ("bleu", 31.237, "31.24"),
        ("perplexity", 1234.5, "1,234.50"),
        ("bits_per_character", 1.499, "1.50"),
        ("similarity", 0.93468, "0.9347"),
    ],
)
def test_scores(name: str, number: float, text: str) -> None:
    assert plain(words.score(name, number)) == text


@pytest.mark.parametrize(
    ("name", "number", "text"),
    [
        *(("latency_ms", 0.25, "0.250"), ("latency_ms", 123.44, "123.4")),
        *(("latency_ms", 0.0, "0.000"), ("latency_ms", 0.00042, "0.00042")),
        *(("kv_cache_mb", 0.01561, "0.0156"), ("joules", -3e-5, "-3e-05")),
        *(("params", 123_456, "123 k"), ("valid_accuracy", 0.01561, "1.6 %")),
    ],
)
def test_small_values_keep_three_digits(name: str, number: float, text: str) -> None:
    assert plain(words.value(name, number)) == text


@pytest.mark.parametrize(
    ("name", "number", "text"),
    [
        *(("kv_cache_mb", 0.0204, "0.0204 MB"), ("latency_ms", 0.1 + 0.2, "0.3 ms")),
        *(("params", 1_234_567, "1,234,567"), ("joules", 3e-5, "3e-05")),
    ],
)
def test_limits_are_told_as_they_were_asked_for(name: str, number: float, text: str) -> None:
    assert plain(words.limit(name, number)) == text


def test_a_sentence_begins_with_a_capital() -> None:
    assert words.sentence("validation loss") == "Validation loss"
    assert words.sentence("100 − BLEU") == "100 − BLEU" and words.sentence("") == ""


# -- markup and charts --------------------------------------------------------------------------


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "a < b", Html("<br>"), title='"') == '<p title="&quot;">a &lt; b<br></p>'
    assert join("<", [Html("<"), "&"]) == "&lt;<&amp;"


def test_attributes_that_are_none_are_left_out() -> None:
    assert tag("p", class_=None, data_x=1) == '<p data-x="1"></p>'


def test_a_table_names_itself_and_escapes_its_heads() -> None:
    text = table(["<h>"], [], "about <it>")
    assert '<th scope="col">&lt;h&gt;</th>' in text
    assert 'aria-label="about &lt;it&gt;"' in text


def test_a_chart_cannot_end_its_script() -> None:
    text = chart("x", [{"text": "</script><!-- &"}], {}, "caption")
    assert text.count("</script>") == 1
    assert "<!--" not in text


def test_wide_ranges_get_a_logarithmic_axis() -> None:
    assert axis("x", [1.0, 100.0])["type"] == "log"
    assert all("type" not in axis("x", values) for values in ([1.0, 2.0], [0.0, 100.0], []))
