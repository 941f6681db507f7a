"""Translation data in a folder that `fairseq-preprocess` wrote, read without fairseq.

Such a folder holds ``dict.SRC.txt``, ``dict.TGT.txt`` and, for the splits train, valid and test,
``SPLIT.SRC-TGT.LANG.bin`` and ``.idx`` of both languages. Text is what its symbols say: words, or
parts of words as subword-nmt or sentencepiece left them. BLEU is counted on joined words.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from nas.fairseq.binarised import FairseqDictionary, detect_post_process, read_indexed
from search_spaces.errors import DataError
from search_spaces.settings import ModelSettings, TokenInput
from search_spaces.space import SearchSpace
from supernet.data.manifest import FILE_NAME, file_sha256
from supernet.data.prepared import PairSplit, PreparedData
from supernet.data.text_files import TokenRows
from supernet.data.tokenizer import PostProcess, join_words

_TRAIN = re.compile(r"train(?P<part>\d*)\.(?P<source>[^.-]+)-(?P<target>[^.-]+)\.[^.]+\.(idx|bin)")


@dataclass(frozen=True, slots=True)
class DataBin:
    """A folder of binarised pairs, and which way it is read.

    Attributes:
        folder: where it is.
        source: language that is translated.
        target: language it is translated into.
        pair: how the files name the two, which may be the other way round.
        post_process: how words are joined for BLEU; None is told by the target's dictionary.
    """

    folder: Path
    source: str
    target: str
    pair: str
    post_process: PostProcess | None = None

    @classmethod
    def find(cls, folder: Path, space: SearchSpace) -> DataBin:
        """Look into a folder.

        A space may say ``languages = ["en", "de"]`` and ``post_process`` in its [data] table;
        without, there has to be one pair of languages, and words are joined as the dictionary
        suggests.

        Raises:
            DataError: when no pair is there, several are and none is chosen, or the training data
                come in parts.
        """
        found = [_TRAIN.fullmatch(path.name) for path in sorted(folder.iterdir())]
        matches = [match for match in found if match is not None]
        parts = {match["part"] for match in matches} - {""}
        if parts:
            raise DataError(
                f"{folder} has its training data in {len(parts) + 1} parts (train{min(parts)}.…); "
                "join the text and run fairseq-preprocess once"
            )
        pairs = list(dict.fromkeys((match["source"], match["target"]) for match in matches))
        source, target, pair = _direction(folder, pairs, space)
        return cls(folder, source, target, pair, _post_process(space))

    def prefix(self, split: str, language: str) -> Path:
        """Path of the files of one side of a split, without their ending."""
        return self.folder / f"{split}.{self.pair}.{language}"

    def dictionary_file(self, language: str) -> Path:
        """Path of a dictionary."""
        return self.folder / f"dict.{language}.txt"


class BinarisedPairs:
    """Opens folders of fairseq's, see `PairFormat`."""

    def recognises(self, folder: Path) -> bool:
        """Whether a folder looks like one of fairseq's and is none of ours."""
        return is_data_bin(folder)

    def open(self, folder: Path, space: SearchSpace) -> PreparedData[PairSplit]:
        """The training and validation pairs."""
        data = open_data_bin(DataBin.find(folder, space), space.model.max_length)
        check_data_bin_fits(data, space.model)
        return data

    def open_test(self, folder: Path, space: SearchSpace) -> PairSplit:
        """The test pairs."""
        return open_data_bin_test(DataBin.find(folder, space), space.model.max_length)


def is_data_bin(folder: Path) -> bool:
    """Whether a folder looks like one of fairseq's and is none of ours."""
    if not folder.is_dir() or (folder / FILE_NAME).exists():
        return False
    return any(folder.glob("dict.*.txt")) or any(folder.glob("train*.idx"))


def open_data_bin(data: DataBin, max_length: int) -> PreparedData[PairSplit]:
    """Open the training and validation pairs.

    Args:
        data: the folder.
        max_length: of the networks; longer validation rows are cut to it, end mark included.

    Raises:
        DataError: when a file is missing, damaged or does not fit the others.
    """
    source, target = _dictionaries(data)
    how = data.post_process or detect_post_process(target.symbols)
    train, valid = (_pairs(data, split, source, target) for split in ("train", "valid"))
    return PreparedData(
        name=data.folder.name,
        train=train,
        valid=_with_lines(valid, source, target, how, max_length),
        digest=_digest(data),
        source_tokenizer=source,
        target_tokenizer=target,
        longest=int(max(side.lengths.max(initial=0) for side in (train.source, train.target))) + 1,
        post_process=how,
    )


def open_data_bin_test(data: DataBin, max_length: int) -> PairSplit:
    """Open the test pairs: for the last step of retraining and for evaluation only.

    Raises:
        DataError: as `open_data_bin`.
    """
    source, target = _dictionaries(data)
    how = data.post_process or detect_post_process(target.symbols)
    return _with_lines(_pairs(data, "test", source, target), source, target, how, max_length)


def check_data_bin_fits(data: PreparedData[PairSplit], model: ModelSettings) -> None:
    """See that networks of these settings can read the data.

    Raises:
        DataError: when a dictionary is larger than the networks' vocabulary, a row is longer than
            they allow, or they share embeddings and the dictionaries differ.
    """
    shape, source, target = model.input, data.source_tokenizer, data.target_tokenizer
    assert isinstance(shape, TokenInput) and source is not None and target is not None
    sizes = {"vocab_size": shape.vocab_size, "target_vocab_size": shape.target_vocab_size}
    sizes["target_vocab_size"] = shape.target_vocab_size or shape.vocab_size
    if shape.share_embeddings and source is not target:
        raise DataError(
            f"the networks of this space share one table of embeddings, but the dictionaries of "
            f"{data.name} differ; run fairseq-preprocess with --joined-dictionary, or set "
            "share_embeddings = false in the space's [model.input]"
        )
    for (key, size), side, own in zip(
        sizes.items(), ("source", "target"), (source, target), strict=True
    ):
        if size is not None and own.vocab_size > size:
            flag = "--nwordssrc" if side == "source" else "--nwordstgt"
            raise DataError(
                f"the {side} dictionary of {data.name} has {own.vocab_size} symbols with the four "
                f"marks, but the networks of this space have {size}; set {key} = "
                f"{own.vocab_size} in the space's [model.input], or run fairseq-preprocess with "
                f"{flag} {size}"
            )
    if data.longest > model.max_length:
        raise DataError(
            f"the longest training row of {data.name} has {data.longest} tokens, but max_length of "
            f"this space is {model.max_length}; raise it in the space's [model], or leave longer "
            "pairs out before fairseq-preprocess"
        )


def _direction(
    folder: Path, pairs: Sequence[tuple[str, str]], space: SearchSpace
) -> tuple[str, str, str]:
    """Source, target and the name of the pair."""
    if not pairs:
        raise DataError(
            f"{folder} has dictionaries of fairseq's, but no train.SRC-TGT.SRC.idx; run "
            "fairseq-preprocess with --trainpref, --validpref and --testpref"
        )
    names = ", ".join("-".join(pair) for pair in pairs)
    wanted = space.data.get("languages")
    if wanted is None and len(pairs) > 1:
        raise DataError(
            f"{folder} holds several pairs of languages ({names}); choose one in the space's "
            f'[data] table: languages = ["{pairs[0][0]}", "{pairs[0][1]}"]'
        )
    if wanted is not None and not (isinstance(wanted, list | tuple) and len(wanted) == 2):
        raise DataError(
            f"languages in the space's [data] table is {wanted!r}; two names are needed, for "
            f'example ["{pairs[0][0]}", "{pairs[0][1]}"]'
        )
    source, target = pairs[0] if wanted is None else wanted
    for pair in ((source, target), (target, source)):
        if pair in pairs:
            return source, target, "-".join(pair)
    raise DataError(
        f"{folder} holds {names}, but the space's [data] table says languages = "
        f'["{source}", "{target}"]'
    )


def _post_process(space: SearchSpace) -> PostProcess | None:
    given = space.data.get("post_process")
    allowed: tuple[PostProcess, ...] = get_args(PostProcess)
    for known in allowed:
        if given == known:
            return known
    if given is None:
        return None
    raise DataError(
        f"post_process in the space's [data] table is {given!r}; allowed are {', '.join(allowed)}"
    )


def _dictionaries(data: DataBin) -> tuple[FairseqDictionary, FairseqDictionary]:
    """Both dictionaries; one object where they say the same."""
    source, target = (
        FairseqDictionary.load(data.dictionary_file(language))
        for language in (data.source, data.target)
    )
    return source, source if source.symbols == target.symbols else target


def _pairs(
    data: DataBin, split: str, source: FairseqDictionary, target: FairseqDictionary
) -> PairSplit:
    said = read_indexed(data.prefix(split, data.source), source)
    meant = read_indexed(data.prefix(split, data.target), target)
    if len(said) != len(meant) or not len(said):
        raise DataError(
            f"the {split} split of {data.folder} has {len(said)} rows of {data.source} and "
            f"{len(meant)} of {data.target}; run fairseq-preprocess anew"
        )
    return PairSplit(said, meant)


def _with_lines(
    split: PairSplit,
    source: FairseqDictionary,
    target: FairseqDictionary,
    how: PostProcess,
    max_length: int,
) -> PairSplit:
    """The pairs with their text: sources as they would be typed, targets as BLEU counts them.

    Rows are cut to `max_length` with the end mark; of the targets' text nothing is cut.
    """
    meant = tuple(join_words(line, how) for line in target.references(_listed(split.target)))
    rows = _cut(split.source, max_length)
    said = tuple(source.decode(_listed(rows)))
    return PairSplit(rows, _cut(split.target, max_length), said, meant)


def _cut(rows: TokenRows, max_length: int) -> TokenRows:
    if int(rows.lengths.max(initial=0)) < max_length:
        return rows
    return TokenRows.of([row[: max_length - 1] for row in _listed(rows)])


def _listed(rows: TokenRows) -> list[list[int]]:
    return [rows[number].tolist() for number in range(len(rows))]


def _digest(data: DataBin) -> str:
    """sha256 over the files that a search may read, by what they are for."""
    files = {f"dict.{n}": data.dictionary_file(lang) for n, lang in enumerate(_languages(data))}
    for split in ("train", "valid"):
        for n, language in enumerate(_languages(data)):
            for ending in ("bin", "idx"):
                path = Path(f"{data.prefix(split, language)}.{ending}")
                files[f"{split}.{n}.{ending}"] = path
    sums = [f"{name} {file_sha256(path)}\n" for name, path in sorted(files.items())]
    return hashlib.sha256("".join(sums).encode()).hexdigest()


def _languages(data: DataBin) -> tuple[str, str]:
    return data.source, data.target
