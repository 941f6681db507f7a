"""`nas predict`: what pictures and texts become, what is answered, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from typer.testing import CliRunner, Result

import supernet.export
from nas.console.app import app
from nas.results.networks import choose_trained, open_data, open_network
from nas.run.folder import RunFolder
from supernet.data.examples import enlarge
from supernet.data.prepare.image_files import read_picture
from supernet.tasks.classification import ClassificationTask
from tests.nas.stages.test_prepared_search import (
    IMAGE_SPACE,
    TEXT_SPACE,
    prepare_images,
    prepare_texts,
)
from tests.support.export_cases import export_to
from tests.support.prepare_cases import pictures, png
from tests.support.prepare_cases import run as prepared
from tests.support.trained_cases import SPACES, trained

# Networks that read pictures of 16 x 16; those of the data have 8 x 8.
ENLARGING = IMAGE_SPACE.replace("image_size = 8", "image_size = 16").replace(
    "max_length = 4", "max_length = 16"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, RunFolder]:
    made = {task: trained(folder / task, text) for task, text in SPACES.items()}
    for name, text, prepare in (
        ("pets", IMAGE_SPACE, prepare_images),
        ("mails", TEXT_SPACE, prepare_texts),
    ):
        data = prepare(folder)
        made[name] = trained(folder / f"run-{name}", text, dataset=name, data=str(data))
    data = str(folder / "pets")
    made["enlarged"] = trained(folder / "run-enlarged", ENLARGING, dataset="pets", data=data)
    return made


def nas(*words: object, given: str = "") -> Result:
    return CliRunner().invoke(app, ["predict", *map(str, words)], input=given)


def answers(*words: object, given: str = "") -> list[dict[str, object]]:
    done = nas(*words, "--json", given=given)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_pictures_are_read_as_the_data_were(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    run = runs["pets"]
    pixels, _ = pictures(60)
    files = []
    for number in range(3):
        files.append(tmp_path / f"{number}.png")
        files[-1].write_bytes(png(pixels[number] // 2))
    found = answers(run.path, *files)
    assert [one["input"] for one in found] == [str(file) for file in files]
    # The same pictures are in the data: what the network says of those is what is told.
    network, data = open_network(run, choose_trained(run, None), "cpu"), open_data(run, None)
    assert isinstance(data.task, ClassificationTask)
    table = data.task.reading
    black, white = np.array(table["black"]), np.array(table["white"])
    inputs = black + (white - black) * (pixels[:3] // 2) / 255
    with torch.inference_mode():
        logits = network.model(
            torch.tensor(inputs, dtype=torch.float32).permute(0, 3, 1, 2), network.architecture
        )
    for one, row in zip(found, logits.softmax(-1), strict=True):
        chances = one["chances"]
        assert isinstance(chances, dict)
        values = [chances[name] for name in data.task.label_names]
        assert values == pytest.approx(row.tolist(), abs=1e-5)
        assert one["answer"] == max(chances, key=chances.__getitem__)
        assert sum(values) == pytest.approx(1.0)


def test_pictures_are_no_sharper_than_those_of_the_data(
    runs: dict[str, RunFolder], tmp_path: Path
) -> None:
    run, file = runs["enlarged"], tmp_path / "a.png"
    file.write_bytes(png(pictures(1, side=20)[0][0]))
    (found,) = answers(run.path, file)
    network, data = open_network(run, choose_trained(run, None), "cpu"), open_data(run, None)
    assert isinstance(data.task, ClassificationTask)
    table = data.task.reading
    black, white = np.array(table["black"]), np.array(table["white"])
    pixels = torch.tensor(black + (white - black) * read_picture(file, 3, 8) / 255)
    inputs = enlarge(pixels.float().permute(2, 0, 1)[None], 16)
    with torch.inference_mode():
        logits = network.model(inputs, network.architecture)
    chances = found["chances"]
    assert isinstance(chances, dict)
    values = [chances[name] for name in data.task.label_names]
    assert values == pytest.approx(logits.softmax(-1)[0].tolist(), abs=1e-5)


def test_pictures_come_in_tables_too(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    run, table = runs["pets"], tmp_path / "a.parquet"
    files = []
    for number, pixels in enumerate(pictures(3, side=20)[0]):
        files.append(tmp_path / f"{number}.png")
        files[-1].write_bytes(png(pixels))
    cells = [{"bytes": file.read_bytes(), "path": None} for file in files]
    parquet.write_table(pa.table({"image": cells, "label": [0, 1, 2]}), table)
    found = answers(run.path, table)
    assert [one["input"] for one in found] == [f"{table}, row {n}" for n in (1, 2, 3)]
    assert [one["chances"] for one in found] == [o["chances"] for o in answers(run.path, *files)]
    parquet.write_table(pa.table({"image": [cells[0]["bytes"], b"no picture"]}), table)
    done = nas(run.path, table)
    assert done.exit_code == 2 and not done.stdout
    assert f"{table}, row 2 is no PNG or JPEG image" in " ".join(done.stderr.split())


def test_the_source_is_guessed_as_in_preparation(
    runs: dict[str, RunFolder], tmp_path: Path
) -> None:
    run, sentence = runs["translation"].path, "the fox sees a bird ."
    (tmp_path / "a.csv").write_text(f"en,de\n{sentence},der fuchs\n")
    (tmp_path / "a.jsonl").write_text(json.dumps({"translation": {"en": sentence, "de": ""}}))
    expected = answers(run, given=f"{sentence}\n")
    for name, told in (
        ("a.csv", "read en as source, de as target; --column source=NAME names another"),
        ("a.jsonl", "read translation.en as source, translation.de as target"),
    ):
        assert answers(run, tmp_path / name) == expected
        assert told in " ".join(nas(run, tmp_path / name).stderr.split())
    (other,) = answers(run, tmp_path / "a.csv", "--column", "source=de")
    assert other["input"] == "der fuchs"
    assert "read" not in nas(run, tmp_path / "a.csv", "--column", "source=en").stderr


def test_texts_come_from_lines_files_and_json(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    run = runs["mails"]
    plain, lines = tmp_path / "a.txt", tmp_path / "a.jsonl"
    plain.write_text("yes yes\nno no\n")
    lines.write_text('{"text": "yes yes", "label": 1}\n{"text": "no no"}\n')
    found = answers(run.path, plain)
    assert len(found) == 2 and {"no", "yes"} == set(found[0]["chances"])  # type: ignore[call-overload]
    assert found == answers(run.path, lines) == answers(run.path, given="yes yes\nno no\n")
    assert "%" in nas(run.path, plain).stdout


def test_the_column_of_the_data_is_read_without_being_named(
    runs: dict[str, RunFolder], tmp_path: Path
) -> None:
    run, table = runs["mails"], tmp_path / "a.csv"
    table.write_text("text,words\nno no,yes yes\n")
    (named,) = answers(run.path, table, "--column", "text=words")
    source, data = tmp_path / "source.csv", tmp_path / "data"
    rows = "".join(f"{'yes ' * (1 + n % 3)}{n},{'no' if n % 2 else 'yes'}\n" for n in range(40))
    source.write_text(f"words,label\n{rows}")
    changes = {"tokenizer": "bytes", "columns": (("text", "words"),), "out": data}
    prepared(tmp_path, "classification", source=(source,), **changes)
    assert answers(run.path, table, "--data", data) == [named]
    assert [one["input"] for one in answers(run.path, table)] == ["no no"]
    (other,) = answers(run.path, table, "--data", data, "--column", "text=text")
    assert other["input"] == "no no"
    table.write_text("text\nno no\n")  # without that column a usual name is taken
    assert [one["input"] for one in answers(run.path, table, "--data", data)] == ["no no"]


def test_an_export_answers_as_its_run(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    run = runs["mails"]
    out = tmp_path / "export"
    export_to(run, "torch", out, arch=choose_trained(run, None))
    (tmp_path / "a.csv").write_text("body,label\nyes yes,1\n")
    named = ["--column", "text=body"]
    found = answers(out, tmp_path / "a.csv", *named)
    assert found == answers(run.path, tmp_path / "a.csv", *named)
    assert found == answers(out, "--jsonl", given='{"text": "yes yes"}\n\n')
    for words, given, message in (
        (["--arch", "1"], "", "leave out --arch and --data"),
        (["--jsonl"], '{"text": "a"}\n[1]\n', "standard input:2: a line is a JSON object"),
    ):
        done = nas(out, *words, given=given)
        assert done.exit_code == 2 and message in " ".join(done.stderr.split())
    (out / "reading.json").write_text('{"kind": 3}')
    assert "export the network anew" in " ".join(nas(out, given="a\n").stderr.split())
    (out / "weights.pt").write_bytes(b"nothing")
    assert "Traceback" not in nas(out, given="a\n").output


def test_an_export_that_is_not_opened_is_told(
    runs: dict[str, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = runs["mails"], tmp_path / "export"
    export_to(run, "torch", out, arch=choose_trained(run, None))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = nas(out, "--device", "cuda", given="yes\n")
    assert done.exit_code == 2 and "has no CUDA device; use --device cpu" in done.stderr
    (out / "weights.pt").rename(out / "checkpoint.pt")  # as fairseq calls it
    told = " ".join(nas(out, given="yes\n").stderr.split())
    assert "in one of the formats safetensors, torch, huggingface and onnx" in told


def test_classes_of_one_name_are_told_apart(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    """In data and exports of older versions; new data have none."""
    run, out, data = runs["pets"], tmp_path / "export", tmp_path / "pets"
    export_to(run, "torch", out, arch=choose_trained(run, None))
    shutil.copytree(str(run.spec.data), data)
    (tmp_path / "a.png").write_bytes(png(pictures(1)[0][0]))
    for file, key in ((out / "reading.json", "labels"), (data / "manifest.json", "label_names")):
        old = {**json.loads(file.read_text()), key: ["crane", "crane", "dog"]}
        file.write_text(json.dumps(old))
    for given in ([out], [run.path, "--data", data]):
        (found,) = answers(*given, tmp_path / "a.png")
        chances = found["chances"]
        assert isinstance(chances, dict) and set(chances) == {"crane", "crane (1)", "dog"}
        assert sum(chances.values()) == pytest.approx(1.0)


def test_a_long_text_is_cut_as_the_data_were(runs: dict[str, RunFolder]) -> None:
    once, longer = answers(runs["mails"].path, given="y" * 17 + "\n" + "y" * 500 + "\n")
    assert once["chances"] == longer["chances"]


def test_a_long_text_is_cut_where_the_data_were_not_where_positions_end(tmp_path: Path) -> None:
    data = prepare_texts(tmp_path, max_length=6)
    run = trained(tmp_path / "run", TEXT_SPACE, dataset="mails", data=str(data))
    export_to(run, "torch", tmp_path / "export", arch=choose_trained(run, None))
    card = (tmp_path / "export/README.md").read_text()
    assert ".encode()[:6]" in card and "byte by byte, the first 6 of them" in card
    for network in (run.path, tmp_path / "export"):
        given = "".join(f"{'y' * length}\n" for length in (5, 6, 7, 500))
        shorter, *longer = (one["chances"] for one in answers(network, given=given))
        assert longer[0] == longer[1] == longer[2] != shorter
        assert [one.get("cut_at") for one in answers(network, given=given)] == [None, None, 6, 6]
        assert not nas(network, "--json", given=given).stderr
        told = "note: 2 texts were cut at 6 tokens: the network read nothing behind them"
        assert told in " ".join(nas(network, given=given).stderr.split())
        assert "note" not in nas(network, given="yes\n").stderr


def test_a_long_beginning_is_cut_at_its_front(runs: dict[str, RunFolder]) -> None:
    run, lines = runs["language_modelling"].path, "the fox\n" + "the bird " * 200 + "\n"
    asked = ["--tokens", "4"]
    assert [one.get("cut_at") for one in answers(run, *asked, given=lines)] == [None, 60]
    told = " ".join(nas(run, *asked, given=lines).stderr.split())
    assert "note: 1 text was cut: the network read the last 60 tokens" in told


def test_graphs_without_onnxruntime_are_told(
    runs: dict[str, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = runs["mails"], tmp_path / "export"
    export_to(run, "torch", out, arch=choose_trained(run, None))
    (out / "classifier.onnx").write_bytes(b"")
    for name in ("onnx_driver", "onnx_failures"):
        monkeypatch.delitem(sys.modules, f"supernet.export.{name}", raising=False)
        monkeypatch.delattr(supernet.export, name, raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = nas(out, given="a\n")
    assert done.exit_code == 2
    told = " ".join(done.stderr.split())
    assert "the format onnx needs the package onnxruntime: pip install" in told


def test_there_is_one_answer_a_line(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "yes\\nyes"}\n{"text": "no"}\n')
    first, second = nas(runs["mails"].path, tmp_path / "a.jsonl").stdout.splitlines()
    assert first.startswith("yes\\nyes\t") and second.startswith("no\t")


def test_paths_that_are_not_utf8_are_told(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9.png")
    file.write_bytes(png(pictures(1)[0][0]))
    (found,) = answers(runs["pets"].path, file)
    assert found["input"] == str(file)
    assert nas(runs["pets"].path, file).stdout.startswith(f"{tmp_path}/caf\\udce9.png\t")


def test_translations_and_continuations(runs: dict[str, RunFolder]) -> None:
    translated = nas(runs["translation"].path, given="the fox sees a bird .\n")
    again = CliRunner().invoke(
        app, ["translate", str(runs["translation"].path)], input="the fox sees a bird .\n"
    )
    assert translated.exit_code == 0 and translated.stdout == again.stdout
    run = runs["language_modelling"].path
    assert len(answers(run, "--tokens", "3", given="the fox\nthe bird\n")) == 2


@pytest.mark.parametrize(
    ("name", "words", "given", "message"),
    [
        ("pets", [], "", "give their files"),
        ("pets", ["{tmp}/none.png"], "", "cannot be read"),
        ("pets", ["{tmp}"], "", "is a folder: give the files in it"),
        ("pets", ["{tmp}/text.png"], "", "is no PNG or JPEG image"),
        ("mails", [], "yes\n\n", "standard input:2: a text is empty"),
        ("mails", ["{tmp}/blank.csv"], "", "blank.csv:3: a text is empty"),
        ("mails", ["{tmp}/none.txt"], "", "cannot be read"),
        ("mails", ["{tmp}/bad.jsonl"], "", "bad.jsonl has the columns 'label': which holds the"),
        ("mails", ["{tmp}/latin1.csv"], "", "LATIN1 -t UTF-8 {tmp}/latin1.csv > {tmp}/latin1.utf8"),
        ("mails", ["{tmp}/text.png"], "", "text.png is a picture by its name, and this network"),
        ("mails", [], "yes\nn\0o\n", "standard input:2: holds the character NUL"),
        ("mails", ["--jsonl"], '{"txt": "a"}\n', "standard input:1: has no text, only 'txt'"),
        ("mails", ["{tmp}/txt.csv"], "", "has the columns 'txt': which holds the text?"),
        ("mails", ["{tmp}/bad.jsonl", "--jsonl"], "", "--jsonl is for standard input"),
        ("mails", ["--column", "text=a"], "yes\n", "say with --jsonl that they are JSON lines"),
        ("mails", ["{tmp}/a.txt", "--column", "text=a"], "", "a.txt has not by its ending"),
        ("pets", ["{tmp}/text.png", "--column", "image=a"], "", "text.png has not by its ending"),
        ("translation", ["{tmp}/a.txt", "{tmp}/long.txt"], "", "long.txt:2 has 100 tokens"),
        ("translation", ["{tmp}/long.jsonl"], "", "long.jsonl:3 has 100 tokens"),
        ("language_modelling", ["--tokens", "100000"], "a\n", "is too many"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    runs: dict[str, RunFolder],
    tmp_path: Path,
    name: str,
    words: list[str],
    given: str,
    message: str,
) -> None:
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "bad.jsonl").write_text('{"label": 1}\n')
    (tmp_path / "a.txt").write_text("yes\nbirds\n")
    (tmp_path / "long.txt").write_text("birds\n" + "birds " * 99 + "\n")
    (tmp_path / "long.jsonl").write_text(
        "".join(f"{json.dumps({'source': 'birds ' * n})}\n\n" for n in (1, 99))
    )
    (tmp_path / "blank.csv").write_text('text,label\nyes,1\n"",0\n')
    (tmp_path / "latin1.csv").write_bytes(b"text\ncaf\xe9\n")
    (tmp_path / "txt.csv").write_text("txt\nyes\n")
    done = nas(runs[name].path, *(w.replace("{tmp}", str(tmp_path)) for w in words), given=given)
    message = message.replace("{tmp}", str(tmp_path))
    assert done.exit_code in (1, 2) and message in " ".join(done.stderr.split())
    assert not done.stdout
