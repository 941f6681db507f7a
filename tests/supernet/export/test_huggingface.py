"""Exports that transformers loads: outputs, `generate`, and tokenizers are those of the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nas.results.export import verify_export
from nas.run.folder import RunFolder
from search_spaces.errors import DataError
from search_spaces.settings import TokenInput
from supernet.blueprint import Blueprint
from supernet.data.listops import SYMBOLS
from supernet.data.tokenizer import SentencePieceTokenizer, WordTokenizer, learn
from supernet.export.contents import Preprocessing, ReferenceOutputs
from supernet.export.formats import ExportSource, write_package
from supernet.export.huggingface import (
    HuggingFaceExport,
    auto_class,
    checkpoint_config,
    tokenizer_config,
    tokenizer_source,
)
from supernet.export.standalone import as_module, modeling_source
from supernet.export.weights import read_tensors, write_tensors
from tests.support.export_cases import export_to, hub_without_net, module_of, opened, run_of, seal
from tests.support.export_networks import random_blueprint, random_inputs, random_network

pytestmark = pytest.mark.export

TASKS = ["translation", "language_modelling", "classification"]
LINES = ["the cat sat on the mat", "a dog and a cat", "mats, cats & dogs: ä ö ü", "on on on"]


def has_memory(blueprint: Blueprint) -> bool:
    decoder = blueprint.architecture.decoder
    return decoder is not None and decoder.memory_length > 0


def has_class_token(blueprint: Blueprint) -> bool:
    return blueprint.settings.class_token and isinstance(blueprint.settings.input, TokenInput)


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    return {task: run_of(tmp_path_factory.mktemp(task) / "run", task) for task in TASKS}


@pytest.fixture(scope="module")
def folders(
    runs: dict[str, RunFolder], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("made")
    return {task: export_to(run, "huggingface", made / task).path for task, run in runs.items()}


def load(hub: Any, cls: str, folder: Path) -> Any:
    return getattr(hub, cls).from_pretrained(folder, trust_remote_code=True)


def inputs_of(task: str, record: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A record's inputs under the names that transformers uses."""
    if task == "translation":
        source = record["input.source"]
        mask = (source != 0).long()
        target = record["input.target"]
        return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}
    if task == "language_modelling":
        return {"input_ids": record["input.tokens"]}
    images = record["input.inputs"].dim() == 4
    return {"pixel_values" if images else "input_ids": record["input.inputs"]}


@torch.inference_mode()
@pytest.mark.parametrize("task", TASKS)
def test_outputs_are_those_of_the_run(hub: Any, folders: dict[str, Path], task: str) -> None:
    cls = auto_class(Blueprint.read(folders[task]))
    record = read_tensors(folders[task] / "check.safetensors")
    model = load(hub, cls, folders[task])
    logits = model(**inputs_of(task, record)).logits
    assert (logits - record["output.logits"]).abs().max() < 1e-4
    assert model.num_parameters() == Blueprint.read(folders[task]).params
    verify_export(folders[task])


@pytest.mark.parametrize("seed", [n for n in range(18) if not has_memory(random_blueprint(n))])
def test_networks_of_every_kind_load(hub: Any, seed: int, tmp_path: Path) -> None:
    blueprint, inputs = random_blueprint(seed), random_inputs(random_blueprint(seed), seed)
    network = random_network(blueprint, seed)
    with torch.inference_mode():
        logits = network(*ReferenceOutputs(inputs, {}).arguments)
    images = "pixel_values" if inputs.get("inputs", torch.zeros(1)).dim() == 4 else ""
    kind = {"kind": "images", "black": [0.0] * 3, "white": [1.0] * 3, "image_size": 12}
    reading = Preprocessing(kind if images else {"kind": "numbers"})
    source = ExportSource(blueprint, network, ReferenceOutputs(inputs, {"logits": logits}), reading)
    write_package(source, HuggingFaceExport(), tmp_path)
    model = load(hub, auto_class(blueprint), tmp_path)
    record = read_tensors(tmp_path / "check.safetensors")
    found = model(**inputs_of(blueprint.task, record)).logits
    assert (found - logits).abs().max() < 1e-4 * max(1.0, float(logits.abs().max()))
    if blueprint.task == "classification":
        bare = load(hub, "AutoModel", tmp_path)
        states = bare(**inputs_of(blueprint.task, record)).last_hidden_state
        assert states.shape[::2] == (len(logits), blueprint.architecture.encoder.embed_dim)


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(4))
def test_embedders_of_every_kind_load(hub: Any, seed: int, tmp_path: Path) -> None:
    blueprint = random_blueprint(seed, "embedding")
    network, inputs = random_network(blueprint, seed), random_inputs(blueprint, seed)
    tokens, asked = inputs["tokens"], ReferenceOutputs(inputs, {})
    expected = network(tokens)
    record = ReferenceOutputs(inputs, asked.named(expected))
    source = ExportSource(blueprint, network, record, Preprocessing({"kind": "numbers"}))
    write_package(source, HuggingFaceExport(), tmp_path)
    model = load(hub, "AutoModel", tmp_path)
    found = model(tokens.masked_fill(tokens == 0, 3), attention_mask=(tokens != 0).long())
    states, embeddings = found.last_hidden_state, found.pooler_output
    right = (tokens != 0)[:, :, None]
    size = max(1.0, float(expected[0].abs().max()))
    assert ((states - expected[0]) * right).abs().max() < 1e-4 * size
    assert (embeddings - expected[1]).abs().max() < 1e-4 * size
    assert auto_class(blueprint) == "AutoModel"


@pytest.mark.parametrize("beam", [1, 4])
def test_generated_translations_are_those_of_the_file(
    hub: Any, runs: dict[str, RunFolder], folders: dict[str, Path], beam: int, tmp_path: Path
) -> None:
    export_to(runs["translation"], "safetensors", tmp_path / "plain")
    module, task = module_of(tmp_path / "plain"), opened(runs["translation"])[1].task
    network = module.load_network()
    model = load(hub, "AutoModelForSeq2SeqLM", folders["translation"])
    tokenizer = load(hub, "AutoTokenizer", folders["translation"])
    for line in task.valid.source_lines[:4]:
        inputs = tokenizer(line, return_tensors="pt")
        row = inputs["input_ids"][0, :-1].tolist()
        made = model.generate(**inputs, num_beams=beam)[0, 1:-1]
        assert made.tolist() == module.translate(network, row, beam)


def test_translations_of_a_batch_are_those_of_its_rows(hub: Any, folders: dict[str, Path]) -> None:
    model = load(hub, "AutoModelForSeq2SeqLM", folders["translation"])
    tokenizer = load(hub, "AutoTokenizer", folders["translation"])
    lines = ["a", "b c d e f", "g h"]
    together = model.generate(
        **tokenizer(lines, return_tensors="pt", padding=True), max_new_tokens=8
    )
    for line, row in zip(lines, together.tolist(), strict=True):
        alone = model.generate(**tokenizer(line, return_tensors="pt"), max_new_tokens=8)
        assert row == alone[0].tolist()


def test_limits_of_ones_own_count_too(hub: Any, folders: dict[str, Path]) -> None:
    model = load(hub, "AutoModelForSeq2SeqLM", folders["translation"])
    source = torch.tensor([[5, 6, 2], [7, 2, 0]])
    longest = model.generate(source, num_beams=1)
    assert longest.shape[1] <= 1 + int(1.2 * 3) + 10
    assert model.generate(source, num_beams=1, max_new_tokens=3).tolist() == longest[:, :4].tolist()


def test_labels_give_the_loss(hub: Any, folders: dict[str, Path]) -> None:
    model = load(hub, "AutoModelForSeq2SeqLM", folders["translation"])
    source, labels = torch.tensor([[5, 6, 2]]), torch.tensor([[7, 8, 2, -100]])
    found = model(input_ids=source, labels=labels)
    logits = model(input_ids=source, decoder_input_ids=torch.tensor([[1, 7, 8]])).logits
    expected = torch.nn.functional.cross_entropy(logits[0], labels[0, :3])
    assert torch.allclose(found.loss, expected)


def test_what_a_translation_model_needs(hub: Any, folders: dict[str, Path]) -> None:
    model = load(hub, "AutoModelForSeq2SeqLM", folders["translation"])
    with pytest.raises(ValueError, match="give decoder_input_ids, or labels"):
        model(input_ids=torch.tensor([[5, 2]]))


def test_a_text_is_continued_as_by_the_file(
    hub: Any, runs: dict[str, RunFolder], folders: dict[str, Path], tmp_path: Path
) -> None:
    export_to(runs["language_modelling"], "safetensors", tmp_path / "plain")
    module = module_of(tmp_path / "plain")
    model = load(hub, "AutoModelForCausalLM", folders["language_modelling"])
    prompt = torch.tensor([[1, 7, 9]])
    made = model.generate(prompt, max_new_tokens=6, eos_token_id=None)
    assert made[0, 3:].tolist() == module.continue_text(module.load_network(), [1, 7, 9], 6)
    beams = model.generate(prompt, max_new_tokens=6, num_beams=3, do_sample=False)
    assert beams.shape[0] == 1


def test_a_text_is_continued_until_the_positions_are_full(
    hub: Any, folders: dict[str, Path]
) -> None:
    folder = folders["language_modelling"]
    model = load(hub, "AutoModelForCausalLM", folder)
    made = model.generate(torch.tensor([[1, 7, 9]]), eos_token_id=None)
    assert made.shape == (1, Blueprint.read(folder).settings.max_length)


def test_padded_prompts_are_refused(hub: Any, folders: dict[str, Path]) -> None:
    model = load(hub, "AutoModelForCausalLM", folders["language_modelling"])
    prompts, mask = torch.tensor([[0, 1], [1, 7]]), torch.tensor([[0, 1], [1, 1]])
    with pytest.raises(ValueError, match="padding stands at the end of rows"):
        model(input_ids=prompts, attention_mask=mask)


@torch.inference_mode()
def test_a_memory_carries_over_segments(hub: Any, tmp_path: Path) -> None:
    blueprint = next(filter(has_memory, map(random_blueprint, range(2, 90, 3))))
    network, limit = random_network(blueprint, 0), blueprint.settings.max_length
    text = torch.randint(1, 20, (2, 2 * limit + 5), generator=torch.Generator().manual_seed(0))
    parts, state = [], network.start()
    for part in text.split(limit, dim=1):
        logits, state = network.step(part, state)
        state = state.next_segment()
        parts.append(logits)
    inputs = random_inputs(blueprint, 0)
    record = ReferenceOutputs(inputs, {"logits": network(*ReferenceOutputs(inputs, {}).arguments)})
    source = ExportSource(blueprint, network, record, Preprocessing({"kind": "numbers"}))
    write_package(source, HuggingFaceExport(), tmp_path)
    model = load(hub, "AutoModelForCausalLM", tmp_path)
    assert torch.allclose(model(input_ids=text).logits, torch.cat(parts, dim=1), atol=1e-4)
    made = model.generate(text[:, :3], max_new_tokens=limit + 4, eos_token_id=None)
    assert made.shape == (2, limit + 7)
    assert model.generate(text[:, :3], eos_token_id=None).shape == (2, limit + 3)


# -- tokenizers -----------------------------------------------------------------------------------


def tokenizer_of(hub: Any, folder: Path, reading: Preprocessing, seed: int) -> Any:
    (folder / "tokenization_nas.py").write_text(tokenizer_source(reading))
    config = tokenizer_config(random_blueprint(seed), reading)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, content in reading.files.items():
        (folder / name).write_bytes(content)
    return load(hub, "AutoTokenizer", folder)


def pieces(size: int) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(learn(LINES * 3, size, "bpe", "the test"))


@pytest.mark.parametrize("joint", [True, False])
def test_sentencepiece_tokenizers(hub: Any, tmp_path: Path, joint: bool) -> None:
    source, target = pieces(50), pieces(40)
    files = {"source.model": source.model, "target.model": (source if joint else target).model}
    names = ["source.model"] * 2 if joint else list(files)
    facts = {"kind": "sentencepiece", "source": names[0], "target": names[1]}
    tokenizer = tokenizer_of(hub, tmp_path, Preprocessing(facts, files), 1)
    other = source if joint else target
    assert tokenizer(LINES)["input_ids"] == [[*row, 2] for row in source.encode(LINES)]
    assert tokenizer(text_target=LINES)["input_ids"] == [[*row, 2] for row in other.encode(LINES)]
    made = [[1, *row, 2, 0] for row in other.encode(LINES)]
    found = tokenizer.batch_decode(made, skip_special_tokens=True)
    assert found == other.decode(other.encode(LINES))


def test_word_tokenizers_mark_the_begin_of_texts(hub: Any, tmp_path: Path) -> None:
    words = WordTokenizer(["a", "cat"])
    facts = {"kind": "words", "source": "words.json", "target": "words.json"}
    files = {"words.json": json.dumps(words.symbols).encode()}
    tokenizer = tokenizer_of(hub, tmp_path, Preprocessing(facts, files), 2)
    assert tokenizer("a dog cat")["input_ids"] == [1, 4, 3, 5]
    assert tokenizer.decode([1, 4, 5, 2], skip_special_tokens=True) == "a cat"
    saved = tmp_path / "saved"
    tokenizer.save_pretrained(saved)
    assert json.loads((saved / "words.json").read_text()) == list(words.symbols)
    assert str(saved / "my-words.json") in tokenizer.save_pretrained(saved, filename_prefix="my")
    assert (saved / "my-words.json").read_bytes() == (saved / "words.json").read_bytes()


def test_a_tokenizer_is_saved_where_it_was_read(hub: Any, tmp_path: Path) -> None:
    source, target = pieces(50), pieces(40)
    files = {"source.model": source.model, "target.model": target.model}
    facts = {"kind": "sentencepiece", "source": "source.model", "target": "target.model"}
    tokenizer = tokenizer_of(hub, tmp_path, Preprocessing(facts, files), 1)
    tokenizer.save_pretrained(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in files} == files
    again = load(hub, "AutoTokenizer", tmp_path)
    assert again(LINES)["input_ids"] == tokenizer(LINES)["input_ids"]


def test_byte_tokenizers(hub: Any, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(hub, tmp_path, Preprocessing({"kind": "bytes"}), 0)
    expected = [byte + 1 for byte in "aä".encode()]
    assert tokenizer(["aä", "b"], padding=True)["input_ids"] == [expected, [99, 0, 0]]
    assert tokenizer.decode(expected) == "aä"


def test_symbol_tokenizers(hub: Any, tmp_path: Path) -> None:
    (tmp_path / "symbols.json").write_text(json.dumps(SYMBOLS))
    reading = Preprocessing({"kind": "symbols", "symbols": list(SYMBOLS)})
    tokenizer = tokenizer_of(hub, tmp_path, reading, 0)
    assert tokenizer("[MAX 1 9 ]")["input_ids"] == [SYMBOLS.index(s) for s in "[MAX 1 9 ]".split()]
    with pytest.raises(ValueError, match="'2x' is no symbol"):
        tokenizer("[MAX 2x ]")


def test_texts_are_cut_where_a_class_token_leaves_room() -> None:
    blueprint = next(filter(has_class_token, map(random_blueprint, range(0, 90, 3))))
    longest = blueprint.settings.max_length - 1
    module = as_module(modeling_source(blueprint), Path("modeling.py"))
    network = module.Network(blueprint.to_json())
    assert network(torch.ones(1, longest, dtype=torch.long)).shape[0] == 1
    with pytest.raises(ValueError, match="positions"):
        network(torch.ones(1, longest + 1, dtype=torch.long))
    for most, cut in (
        (longest, {}),
        (3, {"max_tokens": 3}),
        (longest, {"max_tokens": longest + 9}),
    ):
        reading = Preprocessing({"marks": {}, **cut})
        told = tokenizer_config(blueprint, reading), checkpoint_config(blueprint, reading)
        assert [config["model_max_length"] for config in told] == [most, most]


# -- bad folders ----------------------------------------------------------------------------------


def test_a_foreign_tensor_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    for file in folders["classification"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = read_tensors(tmp_path / "model.safetensors")
    write_tensors(tmp_path / "model.safetensors", {**weights, "other": torch.zeros(1)})
    seal(tmp_path)
    with pytest.raises(DataError, match="a tensor too much, other"):
        verify_export(tmp_path)


def test_code_of_a_folder_is_never_run(folders: dict[str, Path], tmp_path: Path) -> None:
    for file in folders["classification"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for name in ("network.py", "modeling_nas.py", "configuration_nas.py"):
        (tmp_path / name).write_text("raise SystemExit('executed')\n")
    seal(tmp_path)
    assert verify_export(tmp_path).difference < 1e-4
