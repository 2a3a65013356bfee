"""What happened to the documents of a corpus on their way into rows, in all and per source file."""

from collections import Counter
from dataclasses import dataclass, field

from elf.cache.manifest import JSON
from elf.stages.documents import OTHER_SPLIT
from elf.stages.packing import Named, Packer, PairPacker
from elf.stages.parts import Tokenized

FILES_IN_FACTS = 50


@dataclass(slots=True)
class FileCounts:
    """Counts of one source file. ``tokens`` include one end mark per document that is not empty."""

    documents: int = 0
    tokens: int = 0
    unknown_pieces: int = 0
    folded_whitespace: int = 0
    special_strings: int = 0
    empty: int = 0
    other_split: int = 0
    skipped: Counter[str] = field(default_factory=Counter[str])

    def plain(self) -> dict[str, JSON]:
        """As JSON."""
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "unknown_pieces": self.unknown_pieces,
            "folded_whitespace": self.folded_whitespace,
            "special_strings": self.special_strings,
            "empty": self.empty,
            "other_split": self.other_split,
            "skipped": dict(sorted(self.skipped.items())),
        }


@dataclass(slots=True)
class Counts:
    """Counts of all files, and of what packing took and left."""

    files: dict[str, FileCounts] = field(default_factory=dict[str, FileCounts])
    empty: Named = field(default_factory=Named)
    empty_sources: int = 0
    empty_targets: int = 0
    """Pairs without a source, or without a target."""
    pieces: int = 0
    """Tokens of all documents before packing, end marks apart."""
    records: int = 0
    rows: int = 0
    packed: int = 0
    outside: int = 0
    """Tokens that the head's vocabulary does not hold (validation and test, ``vocabulary: used``)."""

    def take(self, record: Tokenized) -> bool:
        """Count one record; returns whether it has tokens to pack."""
        self.records += 1
        file = self.files.setdefault(record.file, FileCounts())
        if record.reason == OTHER_SPLIT:
            file.other_split += 1
            return False
        if record.reason is not None:
            file.skipped[record.reason] += 1
            return False
        file.documents += 1
        file.unknown_pieces += record.unknown
        file.folded_whitespace += record.folded
        file.special_strings += record.special
        self.pieces += record.source.size + record.target.size
        self.empty_sources += record.pair and not record.source.size
        self.empty_targets += record.pair and not record.target.size
        if record.empty:
            file.empty += 1
            self.empty.add(record.id)
            return False
        file.tokens += record.source.size + record.target.size + 1
        return True

    def total(self) -> FileCounts:
        """The sum over files."""
        total = FileCounts()
        for file in self.files.values():
            total.documents += file.documents
            total.tokens += file.tokens
            total.unknown_pieces += file.unknown_pieces
            total.folded_whitespace += file.folded_whitespace
            total.special_strings += file.special_strings
            total.empty += file.empty
            total.other_split += file.other_split
            total.skipped.update(file.skipped)
        return total

    def facts(self, packer: Packer, duplicates: Named) -> dict[str, JSON]:
        """Everything but the files' own counts."""
        facts: dict[str, JSON] = {
            **self.total().plain(),
            "rows": self.rows,
            "packed": self.packed,
            "dropped_tokens": packer.dropped,
            "cut": named(packer.cut),
            "empty": named(self.empty),
            "duplicate_ids": named(duplicates),
            "outside_vocabulary": self.outside,
        }
        if isinstance(packer, PairPacker):
            facts |= {"cut_sources": packer.cut_sources, "cut_targets": packer.cut_targets}
        return facts

    def per_file(self) -> dict[str, JSON]:
        """The files' own counts by file name."""
        return {name: self.files[name].plain() for name in sorted(self.files)}


def named(some: Named) -> dict[str, JSON]:
    """``{"count", "ids"}``, the first hundred ids only."""
    return {"count": some.count, "ids": list(some.first)}
