"""Encoders whose tokenizer pads with another number than 0, as XLM-R's does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nas.run.checkpoint import check_tokenizer, starting_point
from supernet.data.prepare import prepare
from supernet.data.prepare.checkpoint_folder import read_folder
from supernet.data.prepare.plan import PrepareRequest
from supernet.data.prepared import targets_file
from supernet.pretrained.checkpoint import read_checkpoint
from supernet.pretrained.writing import write_checkpoint as write_network
from tests.support.export_cases import hub_without_net
from tests.support.prepare_cases import silent
from tests.support.pretrained_cases import st_folder, write_model
from tests.support.tokenizer_cases import LINES, byte_level, word_pieces, write_checkpoint

pytestmark = pytest.mark.export
pytest.importorskip("tokenizers", reason="the extra export")

MARKS = ["<s>", "<pad>", "</s>", "<unk>"]
TEXTS = [line for line in LINES if line.strip()]


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


def unigrams(marks: Sequence[str] = MARKS) -> Any:
    """As XLM-R's: pieces and scores, `<s>` at 0 and padding at 1."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=list(marks), unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(LINES * 4, trainer)
    around = [("<s>", 0), ("</s>", 2)]
    made.post_processor = processors.TemplateProcessing("<s> $A </s>", None, around)
    return made


def byte_pairs() -> Any:
    """As RoBERTa's, with its own way of putting marks around a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=MARKS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(LINES, trainer)
    rules = [processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)]
    made.post_processor = processors.Sequence(rules)
    return made


def added(made: Any) -> Any:
    """The same with a padding that was added behind the vocabulary, and a token behind that."""
    made.add_special_tokens(["<pad>", "<mask>"])
    return made


KINDS: dict[str, Callable[[], Any]] = {
    "unigrams": unigrams,
    "byte pairs": byte_pairs,
    "added to byte pairs": lambda: added(byte_level(marked=True)),
    "added to unigrams": lambda: added(unigrams(["<s>", "<unk>", "</s>"])),
}


def multilingual(hub: Any, folder: Path) -> Path:
    """A BERT of sentence-transformers with XLM-R's kind of tokenizer."""
    made = unigrams()
    st_folder(write_model(hub, folder, "bert", vocab_size=made.get_vocab_size(), pad_token_id=1))
    return write_checkpoint(folder, made, pad_token="<pad>")


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_token_0_change_places(tmp_path: Path, kind: str) -> None:
    made = KINDS[kind]()
    folder = write_checkpoint(tmp_path, made, pad_token="<pad>")
    found, padding = read_folder(folder, whole_texts=True), made.token_to_id("<pad>")
    assert found.padding == 0 and padding > 0
    assert found.vocab_size == made.get_vocab_size()
    for line in TEXTS:
        theirs = made.encode(line).ids
        ours, _ = found.encode_cut(line, 999)
        assert ours == [{0: padding, padding: 0}.get(token, token) for token in theirs]
        assert found.decode([ours])[0] == made.decode(theirs)
    found.write(tmp_path / "..")
    again = type(found).load(tmp_path / "..")
    assert again.facts == found.facts and again.encode(TEXTS) == found.encode(TEXTS)
    plain = read_folder(folder)  # as decoders read it, to which every number is a token
    assert plain.encode(TEXTS) == [made.encode(t, add_special_tokens=False).ids for t in TEXTS]


def test_a_tokenizer_that_pads_with_0_stays_as_it_is(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, word_pieces(), pad_token="[PAD]")
    assert read_folder(folder, whole_texts=True).content == read_folder(folder).content


@torch.inference_mode()
def test_texts_are_embedded_as_transformers_does(hub: Any, tmp_path: Path) -> None:
    model = multilingual(hub, tmp_path / "model")
    files = {split: tmp_path / f"{split}.txt" for split in ("train", "valid", "test")}
    for file in files.values():
        file.write_text("\n".join(f"{file.stem} {line}" for line in TEXTS))
    train, valid, test = ((file,) for file in files.values())
    out = tmp_path / "data"
    request = PrepareRequest("embedding", train, out, valid=valid, test=test, tokenizer=model)
    prepare(request, silent)
    check_tokenizer(out, starting_point(model).start, "embedding")
    tokenizer = hub.PreTrainedTokenizerFast(
        tokenizer_file=str(model / "tokenizer.json"), pad_token="<pad>"
    )
    texts = [f"train {line}" for line in TEXTS]
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=32, return_tensors="pt")
    assert int(inputs["attention_mask"].min()) == 0
    states_BND = hub.AutoModel.from_pretrained(model).eval()(**inputs).last_hidden_state
    mask_BN1 = inputs["attention_mask"].unsqueeze(-1)
    means_BD = (states_BND * mask_BN1).sum(dim=1) / mask_BN1.sum(dim=1)
    expected = torch.nn.functional.normalize(means_BD, dim=-1).numpy()
    found = np.load(out / targets_file("train"))
    assert np.abs(found - expected).max() < 1e-5


def test_what_is_written_has_the_checkpoints_own_numbers(hub: Any, tmp_path: Path) -> None:
    model = multilingual(hub, tmp_path / "model")
    found = read_checkpoint(model)
    write_network(tmp_path / "out", found.network(), "bert", found, ())
    before, after = (load_file(p / "model.safetensors") for p in (model, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    kept = (model / "tokenizer.json").read_bytes()
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == kept
    assert read_checkpoint(tmp_path / "out").config["pad_token_id"] == 1
