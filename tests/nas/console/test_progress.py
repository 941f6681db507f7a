"""Screens, and numbers and networks in few characters."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from nas.console import progress
from nas.console.formatting import compact, decimal, duration, milliseconds, network
from nas.console.progress import (
    BarReporter,
    JsonReporter,
    LineReporter,
    ProgressReporter,
    choose_reporter,
)
from nas.run import events
from search_spaces import load_space
from search_spaces.architecture import Architecture, EncoderLayer, EncoderStack
from search_spaces.variation import smallest
from search_spaces.wording import mark

RUN: tuple[events.Event, ...] = (
    events.StageSkipped("declare", "Check the request"),
    events.StageStarted("supernet", "Train the supernet", 4),
    events.Progress("supernet", 1, 4, "loss [red]2.0"),
    events.ArchitectureMeasured("supernet", "abc", {"quality": 1.0}),
    events.Note("supernet", "slow [down]"),
    events.Progress("supernet", 3, 4, ""),
    events.StageFinished("supernet", 12.345),
    events.StageStarted("front", "Find the front"),
    events.FrontUpdated("front", ({"quality": 1.0},), 0.25),
)


def played(screen: ProgressReporter, happened: tuple[events.Event, ...] = RUN) -> None:
    with screen:
        for event in happened:
            screen.show(event)


def bars(width: int, happened: tuple[events.Event, ...] = RUN) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, color_system=None, height=40)
    played(BarReporter(console), happened)
    return stream.getvalue()


def test_lines_tell_finished_stages_only() -> None:
    stream = io.StringIO()
    played(LineReporter(Console(file=stream, width=200)))
    assert [line.split("  ")[0] for line in stream.getvalue().splitlines()] == [
        "Check the request",
        "note: slow [down]",
        "Train the supernet",
    ]
    assert "12.3 s  loss [red]2.0" in stream.getvalue()


def test_bars_show_stage_count_message_and_notes() -> None:
    text = bars(140)
    last = text[text.rindex("Check the request") :]
    assert "4/4" in last
    assert "loss [red]2.0" in text
    assert "note: slow [down]" in text
    assert "1 on the front, hypervolume 0.250" in last
    assert "done in an earlier session" in last


@pytest.mark.parametrize("width", [40, 80, 99, 100, 200])
def test_bars_never_fill_more_than_a_line(width: int) -> None:
    long = events.Progress("supernet", 2, 4, "words " * 50)
    for line in bars(width, (*RUN[:3], long)).splitlines():
        assert len(line.rpartition("\x1b[2K")[2].replace("\x1b[?25h", "")) <= width


def test_bars_survive_a_stage_that_is_done_anew_and_one_that_never_began() -> None:
    again = (*RUN[1:7], *RUN[1:7], events.Progress("late", 1, 2), events.StageFinished("later", 1))
    assert bars(140, again).rpartition("\x1b[2K")[2].count("Train the supernet") == 1


def test_the_cursor_comes_back_after_an_error() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    with pytest.raises(ZeroDivisionError), BarReporter(console):
        raise ZeroDivisionError
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_json_lines_hold_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    played(JsonReporter())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == [type(event).__name__ for event in RUN]


def test_notes_are_told_in_the_words_of_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    advice = f"time it anew ({mark('again', 'nas resume RUN --retime')}), with {mark('device')} cpu"
    happened = (
        events.Note("latency", advice, loud=True),
        events.DurationTold("declare", (), 0.0, reason=advice),
    )
    said = "time it anew (nas resume RUN --retime), with --device cpu"
    stream = io.StringIO()
    played(LineReporter(Console(file=stream, width=200)), happened)
    assert stream.getvalue().splitlines() == [f"WARNING: {said}", f"no duration is told: {said}"]
    assert bars(200, happened).count(said) == 2
    played(JsonReporter(), happened)
    note, told = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert note["message"] == told["reason"] == said


def test_the_base_screen_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    played(ProgressReporter())
    assert capsys.readouterr() == ("", "")


def test_the_screen_fits_the_options_and_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, kind in ((True, BarReporter), (False, LineReporter)):
        monkeypatch.setattr(progress, "err", lambda on=terminal: Console(force_terminal=on))
        assert type(choose_reporter(quiet=False, json_lines=False)) is kind
        assert type(choose_reporter(quiet=True, json_lines=False)) is ProgressReporter
        assert type(choose_reporter(quiet=True, json_lines=True)) is JsonReporter


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (738, "738"),
        (999.4, "999"),
        (999.6, "1.00 k"),
        (102_858, "103 k"),
        (999_499, "999 k"),
        (999_600, "1.00 M"),
        (3_308_800, "3.31 M"),
        (1.5e9, "1.50 G"),
        (2.5e16, "25.0 P"),
    ],
)
def test_compact_numbers(value: float | None, text: str) -> None:
    assert compact(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (187.2, "3 min 07 s"),
        (3599.6, "1 h 00 min"),
        (90_061, "25 h 01 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_decimals_and_milliseconds() -> None:
    assert (decimal(0.12345, 4), decimal(None, 4)) == ("0.1235", "–")
    assert [milliseconds(value) for value in (0.5, 9.996, 12.34, 345.6, None)] == [
        "0.50",
        "10.0",
        "12.3",
        "346",
        "–",
    ]


def test_networks() -> None:
    kinds = ("softmax", "linear", "linear", "omni")
    layers = tuple(EncoderLayer(kind, 1, 8) for kind in kinds)  # type: ignore[arg-type]
    encoder = Architecture(encoder=EncoderStack(48, layers))
    assert network(encoder) == "L4 d48 · softmax/linear×2/omni"
    space = load_space("wmt14-hat")
    both = network(space.decode(smallest(space))[0])
    assert both == "L6 d512 · softmax×6 → L1 d512 · (softmax+softmax)"
    language = load_space("wikitext103")
    assert "+" not in network(language.decode(smallest(language))[0])
