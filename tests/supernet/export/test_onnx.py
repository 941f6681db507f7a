"""ONNX exports: what they hold, what is refused, and graphs of all kinds held against torch."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from typer.testing import CliRunner

from nas.console.app import app
from nas.results.export import verify_export
from nas.results.predictions import open_exported
from nas.run.folder import RunFolder
from search_spaces.architecture import (
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.errors import DataError, UsageError
from search_spaces.settings import ModelSettings
from search_spaces.tasks import TaskName
from supernet.blueprint import Blueprint
from supernet.export.contents import Preprocessing, ReferenceOutputs
from supernet.export.formats import ExportSource, check_parity, open_format, write_package
from supernet.export.opening import OnnxModel, open_package
from supernet.tasks.opening import open_task
from tests.support import decoder_cases, export_networks, supernet_cases
from tests.support.decoder_cases import random_translator, random_writer, translator, writer
from tests.support.export_cases import arch_of, export_to, run_of
from tests.support.export_networks import random_blueprint, random_network
from tests.support.supernet_cases import TOKENS, network, random_inputs, random_supernet

pytestmark = pytest.mark.export
onnx = pytest.importorskip("onnx", reason="the extra export")
pytest.importorskip("onnxruntime", reason="the extra export")

from supernet.export import onnx as onnx_export  # noqa: E402
from supernet.export import onnx_driver  # noqa: E402
from supernet.export.onnx import write_graphs  # noqa: E402
from supernet.export.onnx_failures import FAILURES  # noqa: E402
from tests.support import onnx_cases as cases  # noqa: E402

TOLERANCE = 1e-4
KINDS = ("softmax", "linear", "omni")


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_of(tmp_path_factory.mktemp("run") / "run", "classification")


@pytest.fixture(scope="module")
def exported(classifiers: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_to(classifiers, "onnx", tmp_path_factory.mktemp("out") / "onnx").path


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    shutil.copytree(exported, tmp_path / "onnx")
    return tmp_path / "onnx"


# -- the files ------------------------------------------------------------------------------------


def test_an_export_is_as_the_run(exported: Path) -> None:
    found = verify_export(exported)
    assert found.difference == found.facts["difference"] < TOLERANCE
    assert found.facts["files"] == ["classifier.onnx"]
    assert "onnxruntime.InferenceSession" in (exported / "README.md").read_text()


def test_a_graph_says_what_it_is(exported: Path, classifiers: RunFolder) -> None:
    model = onnx.load(exported / "classifier.onnx")
    about = {one.key: one.value for one in model.metadata_props}
    assert about["architecture"] == arch_of(classifiers) and about["graph"] == "classifier"
    (opset,) = [one.version for one in model.opset_import if not one.domain]
    assert opset == int(about["opset"]) == onnx_export.OPSET
    (images,) = model.graph.input
    assert images.name == "images" and images.type.tensor_type.shape.dim[0].dim_param == "batch"


def test_a_graph_holds_nothing_of_this_machine(exported: Path) -> None:
    content = (exported / "classifier.onnx").read_bytes()
    assert b".py" not in content and b"site-packages" not in content
    assert str(Path.home()).encode() not in content


def test_weights_are_there_once(exported: Path) -> None:
    params = json.loads((exported / "architecture.json").read_text())["params"]
    model = onnx.load(exported / "classifier.onnx")
    held = [onnx.numpy_helper.to_array(one) for one in model.graph.initializer]
    assert sum(one.size for one in held if one.dtype.kind == "f") <= params + 64


def test_weights_beside_the_graph_are_found(
    classifiers: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "EMBEDDED_BYTES", 0)
    made = export_to(classifiers, "onnx", tmp_path / "big")
    assert made.facts["files"] == ["classifier.onnx", "classifier.onnx.data"]
    assert verify_export(made.path).difference < TOLERANCE


# -- what is refused ------------------------------------------------------------------------------


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2000])


def pickled(file: Path) -> None:
    file.write_bytes(pickle.dumps({"graph": print}))


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def of_another(file: Path) -> None:
    model = onnx.load(file)
    (named,) = [one for one in model.metadata_props if one.key == "architecture"]
    named.value = "0123456789ab"
    onnx.save(model, file)


def of_other_weights(file: Path) -> None:
    model = onnx.load(file)
    for one in model.graph.initializer:
        if one.data_type == onnx.TensorProto.FLOAT and one.raw_data:
            one.raw_data = bytes(len(one.raw_data))
    onnx.save(model, file)


BROKEN = {
    "missing": (Path.unlink, "is missing; export the network anew"),
    "cut off": (cut_off, "cannot run the graphs"),
    "a pickle": (pickled, "cannot run the graphs"),
    "empty": (emptied, "cannot run the graphs"),
    "another network": (of_another, "its architecture is 0123456789ab, not"),
    "other weights": (of_other_weights, "outputs of the onnx export differ by"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_wrong_graph_is_one_sentence(what: str, folder: Path) -> None:
    breaks, message = BROKEN[what]
    breaks(folder / "classifier.onnx")
    with pytest.raises(DataError, match=message) as error:
        check_parity(open_format("onnx"), folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("breaks", [cut_off, pickled, emptied])
def test_a_wrong_graph_is_not_opened(breaks: Callable[[Path], None], folder: Path) -> None:
    breaks(folder / "classifier.onnx")
    with pytest.raises(DataError, match="onnxruntime cannot open the graphs of .*export") as error:
        open_package(folder)
    assert "\n" not in str(error.value)


def test_a_graph_that_is_not_there_is_told(folder: Path) -> None:
    (folder / "classifier.onnx").rename(folder / "other.onnx")
    with pytest.raises(DataError, match="classifier.onnx is missing; export the network anew"):
        open_package(folder)


def test_a_whole_graph_is_none_of_these(folder: Path) -> None:
    assert check_parity(open_format("onnx"), folder) < TOLERANCE


def test_a_graph_that_cannot_be_run_is_told(folder: Path) -> None:
    """As one for pictures of another size, which opens like any."""
    package = open_package(folder)
    network = package.blueprint.architecture
    assert package.model(torch.zeros(1, 1, 8, 8), network).shape == (1, 10)
    message = r"onnxruntime cannot run classifier\.onnx of .*export the network anew"
    with pytest.raises(DataError, match=message) as error:
        package.model(torch.zeros(1, 1, 4, 8), network)
    assert "\n" not in str(error.value)


class Failing:
    """Graphs that write text until they fail."""

    def __init__(self, *_: object) -> None:
        pass

    def start(self, *_: object) -> NoReturn:
        raise FAILURES[0]("it ends here\nand there")

    read = start


def test_graphs_that_write_text_are_named_where_they_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_driver, "Decoder", Failing)
    monkeypatch.setattr(onnx_driver, "translate", Failing().start)
    for graph in ("source", "step"):
        (tmp_path / f"{graph}.onnx").touch()
    texts = random_blueprint(0, "language_modelling")
    writes = OnnxModel(tmp_path, texts)
    message = r"cannot run .*step\.onnx of .* \(it ends here\); export the network anew$"
    with pytest.raises(DataError, match=message):
        writes.start(texts.architecture)
    with pytest.raises(DataError, match=message):
        writes.step(torch.zeros(1, 1, dtype=torch.int64), None)
    with pytest.raises(DataError, match=message):
        OnnxModel(tmp_path, random_blueprint(0, "translation")).translated(["a"])


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for name in ("onnx", "onnx_driver"):
        monkeypatch.delitem(sys.modules, f"supernet.export.{name}", raising=False)
    with pytest.raises(UsageError, match=r"needs the package onnxruntime: pip install .*\[export"):
        open_format("onnx")


# -- texts ----------------------------------------------------------------------------------------


def decoded(folder: Path, lines: Sequence[str], *options: str) -> list[str]:
    """What ``decode.py`` prints, which may load nothing of ours and no torch."""
    command = [sys.executable, "-I", "-X", "importtime", str(folder / "decode.py"), *options]
    given = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    ours = re.findall(r"\| +((?:search_spaces|supernet|latency|nas|torch)\b.*)", done.stderr)
    assert ours == []
    return done.stdout.splitlines()


@pytest.mark.slow
def test_fifty_sentences_are_translated_as_by_the_run(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "translation")
    made = export_to(run, "onnx")
    task = open_task(run.spec.space, "synthetic", None, run.spec.seed)
    words = task.source_tokenizer.symbols[4:]
    rng = torch.Generator().manual_seed(0)
    lines = [
        " ".join(words[i] for i in torch.randint(len(words), (n,), generator=rng))
        for n in (torch.arange(50) % 17).tolist()
    ]
    for beam in ("1", "4"):
        command = ["translate", str(run.path), "--beam", beam]
        done = CliRunner().invoke(app, command, input="\n".join(lines) + "\n")
        assert decoded(made.path, lines, "--beam", beam) == done.stdout.splitlines()
        assert len(set(done.stdout.splitlines())) > 20


@pytest.mark.slow
def test_a_text_goes_on_behind_its_prompt(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "language_modelling")
    made = export_to(run, "onnx")
    task = open_task(run.spec.space, "synthetic", None, run.spec.seed)
    line = " ".join(task.tokenizer.symbols[4:9])
    (text,) = decoded(made.path, [line], "--tokens", "7")
    assert text.startswith(line + " ") and len(text.split()) <= 5 + 7


# -- all kinds ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", decoder_cases.SETTINGS)
def test_translation_networks(name: str, tmp_path: Path) -> None:
    settings = decoder_cases.SETTINGS[name]
    architecture = translator(own=KINDS, cross=("linear", "softmax", "omni"))
    one = cases.network_of(random_translator(settings), architecture)
    cases.write(one, settings, "translation", tmp_path)
    assert cases.apart_translating(one, tmp_path, 9) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", decoder_cases.SETTINGS)
def test_language_models(name: str, tmp_path: Path) -> None:
    settings = decoder_cases.SETTINGS[name]
    one = cases.network_of(random_writer(settings), writer(*KINDS, "omni"))
    cases.write(one, settings, "language_modelling", tmp_path)
    assert cases.apart_writing(one, tmp_path, 9) < TOLERANCE


@pytest.mark.slow
def test_a_memory_of_earlier_segments(tmp_path: Path) -> None:
    settings = decoder_cases.SETTINGS["relative keys, post-norm"]
    stack = writer("softmax", "softmax").decoder
    assert stack is not None
    architecture = Architecture(decoder=replace(stack, memory_length=30))
    one = cases.network_of(random_writer(settings), architecture)
    cases.write(one, settings, "language_modelling", tmp_path)
    blueprint = Blueprint("language_modelling", settings, architecture)
    inputs = {"tokens": cases.texts(3, 9, 9), "context": cases.texts(3, 30, 9)}
    with torch.inference_mode():
        record = ReferenceOutputs(inputs, {"logits": one(inputs["tokens"], inputs["context"])})
        forgetful = ReferenceOutputs(inputs, {"logits": one(inputs["tokens"])})
    assert open_format("onnx").parity(tmp_path, blueprint, record) < TOLERANCE
    assert open_format("onnx").parity(tmp_path, blueprint, forgetful) > 100 * TOLERANCE


LEARNED = replace(TOKENS, positions="learned")
CLASSIFIERS = supernet_cases.SETTINGS | {"tokens, learned positions": LEARNED}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(name: str, tmp_path: Path) -> None:
    settings = CLASSIFIERS[name]
    one = cases.network_of(random_supernet(settings), network(*KINDS, "omni"))
    cases.write(one, settings, "classification", tmp_path)
    inputs = [random_inputs(settings, batch) for batch in (1, 2, 3)]
    if inputs[0].dtype == torch.int64:
        inputs += [cases.sources(*size, 9) for size in ((1, 1), (4, 17), (2, 9))]
    inputs = [x if x.dtype == torch.int64 else x.float() for x in inputs]
    assert cases.apart_classifying(one, tmp_path, inputs) < TOLERANCE


@torch.inference_mode()
def test_embedders_answer_nothing_that_is_written(tmp_path: Path) -> None:
    drawn = random_blueprint(0, "embedding")
    network, inputs = random_network(drawn, 0), export_networks.random_inputs(drawn, 0)
    record = ReferenceOutputs(inputs, ReferenceOutputs(inputs, {}).named(network(inputs["tokens"])))
    source = ExportSource(drawn, network, record, Preprocessing({"kind": "numbers"}))
    write_package(source, open_format("onnx"), tmp_path)
    with pytest.raises(UsageError, match="answer with vectors"):
        open_exported(tmp_path, "cpu")


@torch.inference_mode()
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_embedders(seed: int, tmp_path: Path) -> None:
    drawn = random_blueprint(seed, "embedding")
    one = random_network(drawn, seed, std=0.3)
    write_graphs(one, drawn, tmp_path)
    for size in ((1, 1), (4, 17), (2, 9), (3, 39)):
        tokens = cases.sources(*size, 9)
        asked = ReferenceOutputs({"tokens": tokens}, {})
        record = replace(asked, outputs=asked.named(one(tokens)))
        assert open_format("onnx").parity(tmp_path, drawn, record) < 5 * TOLERANCE


# -- blocks and operators of today ----------------------------------------------------------------

MODERN: dict[str, Any] = {
    "positions": "rotary",
    "rotary_share": 0.5,
    "norm_kind": "rms",
    "ffn_form": "gated",
    "activation": "silu",
    "qkv_bias": False,
    "output_bias": False,
    "ffn_bias": False,
    "qk_norm": True,
    "tied_output": False,
    "scale_embeddings": False,
    "embedding_norm": True,
    "token_types": 2,
}
OPERATORS = {
    "windows, feature maps": ("window:3", "linear:elu", "linear:hedgehog", "softmax"),
    "gates": ("linear:decay", "linear:decay_channel", "linear:gated_delta"),
    "no attention": ("skip", "linear:decay", "skip"),
}


def bare(settings: ModelSettings, task: TaskName, architecture: Architecture) -> Any:
    """A network of its own, with weights that make a difference everywhere."""
    return random_network(Blueprint(task, settings, architecture), 0, std=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_language_models_of_today(name: str, tmp_path: Path) -> None:
    settings = replace(decoder_cases.SETTINGS["learned positions"], **MODERN)
    layers = tuple(DecoderLayer(kind, 4, 6, self_num_kv_heads=2) for kind in OPERATORS[name])
    architecture = Architecture(decoder=DecoderStack(12, layers))
    one = bare(settings, "language_modelling", architecture)
    cases.write(one, settings, "language_modelling", tmp_path)
    assert cases.apart_writing(one, tmp_path, 9) < TOLERANCE
    held = {
        name: array.shape[-2]
        for name, array in written_state(tmp_path, length=9).items()
        if name.endswith("keys")
    }
    assert held == ({"state.0.keys": 3, "state.3.keys": 9} if "windows" in name else {})


def written_state(folder: Path, length: int) -> Any:
    """What a language model remembers of a text."""
    decoder, tokens = onnx_driver.Decoder(folder, 1), cases.texts(2, length, 9).numpy()
    return decoder.step(tokens, decoder.start(tokens))[1].states


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("class_token", [True, False])
def test_classifiers_of_today(name: str, class_token: bool, tmp_path: Path) -> None:
    settings = replace(TOKENS, **MODERN, class_token=class_token, pooling="mean", max_length=90)
    layers = tuple(EncoderLayer(kind, 4, 6, 2) for kind in OPERATORS[name])
    architecture = Architecture(EncoderStack(12, layers))
    one = bare(settings, "classification", architecture)
    cases.write(one, settings, "classification", tmp_path)
    inputs = [cases.sources(*size, 9) for size in ((1, 1), (4, 17), (2, 9), (3, 80))]
    assert cases.apart_classifying(one, tmp_path, inputs) < TOLERANCE
