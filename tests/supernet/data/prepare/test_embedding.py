"""Texts and a checkpoint → rows of its tokens and the embeddings that it gives them."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nas.console.app import app
from nas.console.commands.search import Here
from nas.request.resolve import resolve
from nas.request.spec import SearchRequest
from search_spaces.errors import DataError, UsageError
from supernet.data.manifest import read_manifest, record_files, write_manifest
from supernet.data.prepare import Prepared, embedding, prepare
from supernet.data.prepare.doctor import Doctor
from supernet.data.prepare.folder import TextFolder
from supernet.data.prepare.plan import PrepareRequest
from supernet.data.prepare.records import Columns, read_records
from supernet.data.prepare.splits import files_of
from supernet.data.prepared import EMBEDDINGS, STREAM
from supernet.pretrained.checkpoint import checkpoint_digest, read_checkpoint
from supernet.pretrained.space import space_around
from supernet.tasks.opening import open_task
from tests.support.export_cases import hub_without_net
from tests.support.prepare_cases import silent
from tests.support.pretrained_cases import change_config, sentence_encoder, write_model
from tests.support.tokenizer_cases import byte_level, write_checkpoint

pytestmark = pytest.mark.export

WORDS = "The cat sat On a mat Dogs run at 7 o'clock why".split()
DRAWN = np.random.default_rng(5)
TEXTS = sorted({" ".join(DRAWN.choice(WORDS, size)) for size in [3, 6, 9, 20, 40] * 40})


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def model(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_encoder(hub, tmp_path_factory.mktemp("checkpoints") / "bert")


def write(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in texts), "utf-8")
    return path


def pieces_of(model: Path) -> Any:
    """The tokenizer of a folder, read by its own package."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(model / "tokenizer.json"))


def cut_to(most: int, tokens: list[int]) -> tuple[int, ...]:
    """Token numbers with their end mark, at most so many."""
    return tuple(tokens if len(tokens) <= most else [*tokens[: most - 1], 3])


def prepared(folder: Path, model: Path, *sources: Path, **changes: Any) -> Prepared:
    given = sources or (write(folder / "texts.txt", TEXTS),)
    request = PrepareRequest("embedding", given, folder / "out", tokenizer=model, **changes)
    return prepare(request, silent)


# -- what is written ------------------------------------------------------------------------------


def test_every_text_has_the_tokens_and_the_embedding_of_the_checkpoint(
    model: Path, tmp_path: Path
) -> None:
    found = prepared(tmp_path, model).manifest
    network, pieces = read_checkpoint(model).network(), pieces_of(model)
    wanted = {cut_to(32, pieces.encode(text).ids) for text in TEXTS}
    data, test = EMBEDDINGS.open(tmp_path / "out"), EMBEDDINGS.open_test(tmp_path / "out")
    rows = {}
    for split in (data.train, data.valid, test):
        for number in range(len(split)):
            rows[tuple(split.texts[number].tolist())] = split.targets[number]
    assert set(rows) == wanted
    for row, target in list(rows.items())[::7]:
        with torch.no_grad():
            right = network(torch.tensor([row]))[1][0]
        assert np.allclose(target, right.numpy(), atol=1e-5)
    assert (found.content, found.width, data.longest) == ("embeddings", 24, max(map(len, rows)))
    assert found.settings["checkpoint"] == checkpoint_digest(read_checkpoint(model))
    assert found.settings["max_length"] == 32


def test_what_the_checkpoint_says_of_tokens_is_kept_for_training(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = prepared(tmp_path, model).manifest
    data = EMBEDDINGS.open(tmp_path / "out")
    states, texts = data.train.states, data.train.texts
    assert states is not None and data.valid.states is None
    network = read_checkpoint(model).network()
    for number in range(0, len(texts), 9):
        with torch.no_grad():
            said = network(torch.tensor([texts[number].tolist()]))[0][0]
        right = torch.nn.functional.normalize(said, dim=-1).numpy()
        kept = states[texts.offsets[number] : texts.offsets[number + 1]]
        assert np.allclose(kept, right, atol=1e-3)
    np.save(tmp_path / "out" / "train.states.npy", np.array(states[1:]))
    files = record_files(tmp_path / "out")
    write_manifest(tmp_path / "out", found.model_copy(update={"files": files}))
    with pytest.raises(DataError, match="contradicts its files"):
        EMBEDDINGS.open(tmp_path / "out")
    monkeypatch.setattr(embedding, "MOST_STATES_BYTES", 2 * 24 * texts.num_tokens - 1)
    prepared(tmp_path / "small", model)
    assert EMBEDDINGS.open(tmp_path / "small" / "out").train.states is None


def test_what_is_learnt_from_may_be_computed_in_bfloat16_and_what_judges_is_not(
    model: Path, tmp_path: Path
) -> None:
    exact = prepared(tmp_path, model).manifest
    rough = prepared(tmp_path / "rough", model, bfloat16=True).manifest
    assert "bfloat16" not in exact.settings and rough.settings["bfloat16"] is True
    assert exact.request != rough.request
    folders = [tmp_path / "out", tmp_path / "rough" / "out"]
    (right, found), tests = map(EMBEDDINGS.open, folders), map(EMBEDDINGS.open_test, folders)
    assert np.array_equal(right.valid.targets, found.valid.targets)
    assert np.array_equal(*(test.targets for test in tests))
    assert right.train.states is not None and found.train.states is not None
    assert 0 < np.abs(right.train.targets - found.train.targets).max() < 0.05
    assert 0 < np.abs(right.train.states - found.train.states).max() < 0.05
    pages = PrepareRequest("classification", (tmp_path,), tmp_path / "new", bfloat16=True)
    with pytest.raises(UsageError, match="--bfloat16 is for embeddings"):
        prepare(pages, lambda *_: None)


def test_texts_are_held_out_by_what_they_say(model: Path, tmp_path: Path) -> None:
    one = prepared(tmp_path / "one", model).manifest
    sizes = [one.splits[split].examples for split in ("train", "valid", "test")]
    assert sum(sizes) == len(TEXTS) and sizes[0] > 0.8 * len(TEXTS) and min(sizes) > 2
    texts = write(tmp_path / "two" / "b.txt", [*reversed(TEXTS), *TEXTS[:9], "", "  "])
    two = prepared(tmp_path / "two", model, texts).manifest
    assert [two.splits[split].examples for split in ("train", "valid", "test")] == sizes
    dropped = [split.dropped for split in two.splits.values()]
    assert sum(one.get("equal", 0) for one in dropped) == 9
    assert sum(one.get("blank", 0) for one in dropped) == 2
    first, second = (
        {tuple(row) for row in map(tuple, rows.padded().tolist())}
        for rows in (EMBEDDINGS.open(tmp_path / n / "out").valid.texts for n in ("one", "two"))
    )
    assert first == second


def test_given_splits_are_taken_as_they_are(model: Path, tmp_path: Path) -> None:
    files = {
        "valid": (write(tmp_path / "v.txt", TEXTS[:5]),),
        "test": (write(tmp_path / "t.txt", TEXTS[5:8]),),
    }
    found = prepared(tmp_path, model, **files).manifest
    assert [split.examples for split in found.splits.values()] == [len(TEXTS), 5, 3]
    assert found.splits["valid"].overlap == {"train": 5}
    again = prepared(tmp_path, model, **files)
    assert again.found


def test_folders_and_all_forms_of_files(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    write(folder / "a.txt", TEXTS[:50])
    (folder / "deep").mkdir()
    (folder / "deep" / "b.en.gz").write_bytes(gzip.compress("\n".join(TEXTS[50:90]).encode()))
    lines = [json.dumps({"text": text, "more": 1}) for text in TEXTS[90:]]
    write(folder / "c.jsonl", lines)
    write(folder / "README.md", ["no text"])
    write(folder / ".hidden" / "x.txt", ["no text"])
    found = files_of({"train": [folder]}, Doctor())["train"]
    assert [path.name for path in found] == ["a.txt", "c.jsonl", "b.en.gz"]
    found = prepared(tmp_path, model, folder).manifest
    assert sum(split.examples for split in found.splits.values()) == len(TEXTS)
    assert len(found.inputs) == 4


def test_prompt_and_lower_case_of_the_folder(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    prompts = {"prompts": {"find": "Dogs "}, "default_prompt_name": "find"}
    (other / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    length = {"max_seq_length": 9, "do_lower_case": True}
    (other / "sentence_bert_config.json").write_text(json.dumps(length))
    texts = write(tmp_path / "texts.txt", [f"The CAT {n}" for n in range(90)])
    found = prepared(tmp_path, other, texts).manifest
    assert (found.settings["prompt"], found.settings["lower_case"]) == ("Dogs ", True)
    pieces = pieces_of(other)
    wanted = [pieces.encode(f"dogs the cat {n}").ids for n in range(90)]
    cut = {cut_to(9, ids) for ids in wanted}
    rows = EMBEDDINGS.open(tmp_path / "out").train.texts
    assert {tuple(rows[n].tolist()) for n in range(len(rows))} <= cut
    assert sum(split.truncated for split in found.splits.values()) == sum(
        len(ids) > 9 for ids in wanted
    )


def test_batches_of_any_size_give_the_same_embeddings(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path / "one", model)
    monkeypatch.setattr(embedding, "BATCH_TEXTS", 5)
    monkeypatch.setattr(embedding, "BATCH_TOKENS", 40)
    prepared(tmp_path / "two", model)
    one, two = (EMBEDDINGS.open(tmp_path / name / "out").train.targets for name in ("one", "two"))
    assert np.allclose(one, two, atol=1e-6)


def test_a_disk_without_room_is_told_and_nothing_stays(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left") as found:
        prepared(tmp_path, model)
    assert str(found.value.filename).endswith("train.targets.npy")
    assert not (tmp_path / "out").exists()


# -- pairs ----------------------------------------------------------------------------------------

PAIRS = [(TEXTS[n], TEXTS[n + 100]) for n in range(90)] + [(TEXTS[90], TEXTS[100])]


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    return write(path, [json.dumps({"query": q, "passage": p}) for q, p in pairs])


def pairs_of(folder: Path, model: Path) -> list[set[tuple[str, str]]]:
    """The pairs of each split, as text."""
    data, test = EMBEDDINGS.open(folder), EMBEDDINGS.open_test(folder)
    texts = {cut_to(32, pieces_of(model).encode(text).ids): text for text in TEXTS}
    found = []
    for split in (data.train, data.valid, test):
        pairs = [] if split.pairs is None else split.pairs.tolist()
        found.append({tuple(texts[tuple(split.texts[n].tolist())] for n in one) for one in pairs})
    return found


def test_pairs_are_held_out_by_their_passages(model: Path, tmp_path: Path) -> None:
    more = [*PAIRS, PAIRS[3], (TEXTS[5], TEXTS[5]), (TEXTS[6], " ")]
    file = write_pairs(tmp_path / "pairs.jsonl", more)
    plain = write(tmp_path / "plain.txt", TEXTS[:3])
    manifest = prepared(tmp_path, model, file, plain).manifest
    train, valid, test = pairs_of(tmp_path / "out", model)
    assert train | valid | test == set(PAIRS) and len(train) + len(valid) + len(test) == len(PAIRS)
    assert [one.counts["pairs"] for one in manifest.splits.values()] == [
        len(train),
        len(valid),
        len(test),
    ]
    passages = [{passage for _, passage in split} for split in (train, valid, test)]
    assert all(passages) and not passages[0] & (passages[1] | passages[2])
    assert sum(one.dropped.get("blank", 0) for one in manifest.splits.values()) == 1
    assert "train.pairs.npy" in manifest.files
    assert sum(one.dropped.get("equal", 0) for one in manifest.splits.values()) >= 1


@pytest.mark.parametrize("passage", ["cat ", ""])
def test_queries_and_passages_stand_behind_their_prompts(
    model: Path, tmp_path: Path, passage: str
) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    prompts = {"prompts": {"query": "Dogs ", "document": passage}}
    (other / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    more = [*PAIRS, (TEXTS[5], TEXTS[5]), (PAIRS[0][1], PAIRS[1][1])]  # the passage asks, too
    file = write_pairs(tmp_path / "pairs.jsonl", more)
    alone = write(tmp_path / "plain.txt", ["mat mat mat"])
    found = prepared(tmp_path, other, file, alone).manifest
    assert (found.settings["prompt"], found.settings["query_prompt"]) == (passage, "Dogs ")
    data, test = EMBEDDINGS.open(tmp_path / "out"), EMBEDDINGS.open_test(tmp_path / "out")
    rows = [
        split.texts[n].tolist()
        for split in (data.train, data.valid, test)
        for n in range(len(split))
    ]
    pieces = pieces_of(other)

    def read(text: str) -> list[int]:
        return [*cut_to(32, pieces.encode(text).ids)]

    asked = {f"Dogs {query}" for query, text in more if query != text}
    told = {f"{passage}{text}" for text in [*(text for _, text in more), "mat mat mat"]}
    assert sorted(rows) == sorted(map(read, asked | told))
    pairs = [
        (split.texts[one].tolist(), split.texts[two].tolist())
        for split in (data.train, data.valid, test)
        if split.pairs is not None
        for one, two in split.pairs.tolist()
    ]
    wanted = [(f"Dogs {one}", f"{passage}{two}") for one, two in more if one != two]
    assert sorted(pairs) == sorted((read(one), read(two)) for one, two in wanted)


def test_pairs_need_pairs_held_out(model: Path, tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs.jsonl", PAIRS)
    texts = write(tmp_path / "valid.txt", TEXTS[:9])
    with pytest.raises(DataError, match="none in the valid split: give --valid a file with pairs"):
        prepared(tmp_path, model, pairs, valid=(texts,))
    few = write_pairs(tmp_path / "few.jsonl", PAIRS[:2])
    with pytest.raises(DataError, match="none in the valid split: give more, or --valid"):
        prepared(tmp_path, model, few, write(tmp_path / "plain.txt", TEXTS))
    assert not (tmp_path / "out").exists()


def test_what_is_no_pair_is_told(hub: Any, model: Path, tmp_path: Path) -> None:
    for line in ('{"query": "a"}', '{"query": "a", "passage": 3}', '["a", "b"]', "3"):
        wrong = write(tmp_path / "wrong.jsonl", [line])
        with pytest.raises(
            DataError, match=r"wrong.jsonl(:1: (a line is|passage is 3)| has the columns 'que)"
        ):
            prepared(tmp_path, model, wrong)


def test_pairs_that_were_changed_are_refused(model: Path, tmp_path: Path) -> None:
    prepared(tmp_path, model, write_pairs(tmp_path / "pairs.jsonl", PAIRS))
    out = tmp_path / "out"
    np.save(out / "valid.pairs.npy", np.full((3, 2), 10**6))
    with pytest.raises(DataError, match="prepare the data anew"):
        EMBEDDINGS.open(out)
    manifest = read_manifest(out)
    write_manifest(out, manifest.model_copy(update={"files": record_files(out)}))
    with pytest.raises(DataError, match="contradicts its files"):
        EMBEDDINGS.open(out)


# -- what is refused ------------------------------------------------------------------------------


def test_what_cannot_be_prepared_is_told(model: Path, hub: Any, tmp_path: Path) -> None:
    writer = write_model(hub, tmp_path / "gpt2", "gpt2", vocab_size=280)
    write_checkpoint(writer, byte_level())
    empty = tmp_path / "empty"
    empty.mkdir()
    few = write(tmp_path / "few.txt", TEXTS[:1])
    wrong = write(tmp_path / "wrong.jsonl", ['{"text": "a"}', '{"words": "a"}'])
    for error, words, sources, changes in (
        (UsageError, "give its folder with --tokenizer MODEL", (), {"tokenizer": "bpe"}),
        (UsageError, "a gpt2 for language_modelling", (), {"tokenizer": writer}),
        (UsageError, "leave out --target", (), {"target": (few,)}),
        (UsageError, "and this one is the checkpoint's: leave it out", (), {"vocab_size": 99}),
        (UsageError, "--max-length is 3, marks included, to 48", (), {"max_length": 49}),
        (UsageError, "--max-length is 3, marks included, to 48", (), {"max_length": 2}),
        (DataError, "has no texts: put files that end in .txt", (empty,), {}),
        (
            DataError,
            "split has 0 different texts and needs [12] or more: give more texts",
            (few,),
            {},
        ),
        (DataError, "wrong.jsonl:2: has no text, only 'words'", (wrong,), {}),
    ):
        with pytest.raises(error, match=words):
            prepared(tmp_path, changes.pop("tokenizer", model), *sources, **changes)
    assert not (tmp_path / "out").exists()
    other = shutil.copytree(model, tmp_path / "other")
    (other / "sentence_bert_config.json").write_text('{"max_seq_length": 2}')
    with pytest.raises(DataError, match="cuts texts to 2 tokens, and 2 of them are marks"):
        prepared(tmp_path, other, write(tmp_path / "texts.txt", TEXTS))


def test_data_of_another_width_or_length_do_not_fit(model: Path, hub: Any, tmp_path: Path) -> None:
    prepared(tmp_path, model)
    for changes, words in (
        ({"hidden_size": 16}, "have 24 numbers, but networks of this space have embed_dim = 16"),
        ({"max_position_embeddings": 8}, "prepare the data with --max-length 8"),
        ({"vocab_size": 60}, "set vocab_size of the space"),
    ):
        folder = write_model(hub, tmp_path / words[:5], "bert", **{"vocab_size": 90, **changes})
        space = space_around(read_checkpoint(folder))
        with pytest.raises(DataError, match=words):
            open_task(space, "out", str(tmp_path / "out"), 0)


def test_targets_of_another_form_are_refused(model: Path, tmp_path: Path) -> None:
    prepared(tmp_path, model)
    file = tmp_path / "out" / "manifest.json"
    values = json.loads(file.read_text()) | {"width": 23}
    file.write_text(json.dumps(values))
    with pytest.raises(DataError, match="contradicts its files"):
        EMBEDDINGS.open(tmp_path / "out")


# -- the command, and folders as they are ---------------------------------------------------------


def test_the_command(model: Path, tmp_path: Path) -> None:
    texts = write(tmp_path / "texts.txt", TEXTS)
    given = ["data", "prepare", "--task", "embedding", "--tokenizer", str(model)]
    done = CliRunner().invoke(app, [*given, "--source", str(texts), "--out", str(tmp_path / "d")])
    assert done.exit_code == 0, done.output
    assert f"nas search --from {model} --data {tmp_path / 'd'}" in done.stdout
    assert "Embedding valid" in done.stderr


def test_a_search_prepares_a_plain_folder_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAS_CACHE_DIR", str(tmp_path / "cache"))
    write(tmp_path / "texts" / "a.txt", TEXTS)
    request = SearchRequest(start=str(model), data=str(tmp_path / "texts"))
    first = resolve(request, Here(quiet=True)).spec
    assert first.data is not None and Path(first.data).parent == tmp_path / "cache" / "data"
    assert first.dataset == Path(first.data).name and first.dataset.startswith("texts-")
    with (
        monkeypatch.context() as patch,
        pytest.raises(UsageError, match="embed texts and keep nothing"),
    ):
        patch.setattr("nas.run.checkpoint.prepared_texts", None)  # refused before it is asked for
        resolve(
            request.model_copy(update={"objectives": ("quality", "kv_cache_mb")}), Here(quiet=True)
        )
    monkeypatch.setattr("supernet.data.prepare.folder.prepare", None)
    assert resolve(request, Here(quiet=True)).spec == first
    direct = request.model_copy(update={"data": first.data})
    again = resolve(direct, Here(quiet=True)).spec
    assert again == first and again.digest == first.digest


def test_a_search_takes_one_file_of_texts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAS_CACHE_DIR", str(tmp_path / "cache"))
    file = write(tmp_path / "texts.txt", TEXTS)
    found = resolve(SearchRequest(start=str(model), data=str(file)), Here(quiet=True)).spec
    assert found.data is not None and len(EMBEDDINGS.open(Path(found.data)).valid) > 2


def test_other_texts_or_another_checkpoint_are_other_data(model: Path, tmp_path: Path) -> None:
    folder, other = tmp_path / "texts", tmp_path / "other"
    write(folder / "a.txt", TEXTS)
    shutil.copytree(model, other)

    def name(of: Path = model) -> str:
        return TextFolder.read(folder, read_checkpoint(of)).name

    names = [name(), name(other)]
    assert names[0] == names[1]
    change_config(other, layer_norm_eps=1e-3)
    names.append(name(other))
    length = {"max_seq_length": 9, "do_lower_case": False}
    (other / "sentence_bert_config.json").write_text(json.dumps(length))
    names.append(name(other))
    write(folder / "b.txt", TEXTS[:1])
    names.append(name())
    assert len(set(names)) == 4


def test_a_folder_without_texts_is_told_in_one_sentence(model: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    given = ["search", "--from", str(model), "--data", str(tmp_path / "texts")]
    done = CliRunner().invoke(app, [*given, "--out", str(tmp_path / "run")])
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert "has no texts: put files that end in .txt, .gz," in done.stderr
    write(tmp_path / "texts" / "test.txt", TEXTS)
    done = CliRunner().invoke(app, given)
    assert "no texts to learn from beside those called test" in done.stderr


def test_a_search_names_no_option_of_preparing_as_its_own(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAS_CACHE_DIR", str(tmp_path / "cache"))

    def refused(name: str, content: bytes) -> str:
        file = tmp_path / name / "a.txt"
        file.parent.mkdir()
        file.write_bytes(content)
        with pytest.raises(DataError) as told:
            resolve(SearchRequest(start=str(model), data=str(file.parent)), Here(quiet=True))
        return str(told.value)

    whose = " (so nas data prepare is told, whose folder --data takes)"
    text = "\n".join(TEXTS).encode()
    assert refused("latin1", text + b"\ncaf\xe9").endswith(f"leave it out with --skip-bad{whose}")
    assert refused("few", b"a cat\na dog\n").endswith(f"a folder of texts a file valid.txt{whose}")
    assert "nas data prepare" not in refused("none", b"")


def test_lines_of_a_language_model_are_held_out_at_the_end(hub: Any, tmp_path: Path) -> None:
    model = write_checkpoint(
        write_model(hub, tmp_path / "llama", "llama", vocab_size=280), byte_level(marked=True)
    )
    folder = tmp_path / "texts"
    lines = [f"line {n}" for n in range(100)]
    write(folder / "a.txt", lines[:60])
    write(folder / "b.jsonl", [json.dumps({"text": "\n".join(lines[60:75])})])
    write(folder / "c.txt", lines[75:])
    found = TextFolder.read(folder, read_checkpoint(model)).prepare(tmp_path / "data", silent)
    data, test = STREAM.open(found), STREAM.open_test(found)
    assert data.source_tokenizer is not None
    texts = []
    for split in (data.train, data.valid, test):
        rows = [split.rows[number].tolist() for number in range(len(split.rows))]
        texts.append(data.source_tokenizer.decode(rows))
    assert texts[1] == [*lines[54:57], lines[74], lines[97]]
    assert texts[2] == [*lines[57:60], *lines[98:]]
    assert sorted(itertools.chain(*texts), key=lines.index) == lines
    assert read_manifest(found).task == "language_modelling"
    assert not [path for path in found.parent.iterdir() if path != found]


def test_of_files_of_a_line_some_are_held_out(hub: Any, tmp_path: Path) -> None:
    model = write_checkpoint(
        write_model(hub, tmp_path / "llama", "llama", vocab_size=280), byte_level(marked=True)
    )
    for number in range(40):
        write(tmp_path / "texts" / f"{number:02}.txt", [f"line {number}"])
    write(tmp_path / "texts" / "valid.txt", ["one more", "and one"])
    found = TextFolder.read(tmp_path / "texts", read_checkpoint(model))
    splits = read_manifest(found.prepare(tmp_path / "data", silent)).splits
    assert {name: split.examples for name, split in splits.items()} == {
        "train": 38,
        "valid": 2,
        "test": 2,
    }


def test_too_few_lines_are_told(hub: Any, tmp_path: Path) -> None:
    model = write_checkpoint(
        write_model(hub, tmp_path / "llama", "llama", vocab_size=280), byte_level(marked=True)
    )
    write(tmp_path / "texts" / "a.txt", ["one", "two"])
    found = TextFolder.read(tmp_path / "texts", read_checkpoint(model))
    with pytest.raises(DataError, match=r"too few .* a file called valid\.txt"):
        found.prepare(tmp_path / "data", silent)


def test_a_lone_surrogate_is_no_character(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", ['{"text": "a \\ud800 b"}'])
    (record,) = read_records([file], Columns((("text",),)))
    assert record.values == ("a ? b",)
