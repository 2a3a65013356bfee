"""Documents to token ids, part by part, in any number of processes.

The stream of records is cut into chunks that depend on nothing but the records; each becomes one part file with a
completion record beside it, so that an interrupted run goes on. How many processes share the work, and how large a
chunk is, leaves no trace in what is made of the parts.
"""

import json
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

import numpy as np
import pyarrow as pa

from elf.cache.errors import Damaged
from elf.cache.files import digest_file, write_atomic
from elf.pipeline.errors import Failed
from elf.stages.documents import Document, Skipped
from elf.stages.packing import NAMED, Named
from elf.stages.vocabulary import TextTokenizer, load_tokenizer

CHUNK_RECORDS = 512
CHUNK_CHARACTERS = 2**20
_FOLDABLE = re.compile(r"\A\s+|\s+\Z|\s{2,}|[^\S ]")


@dataclass(frozen=True, slots=True)
class Shown:
    """How messages name what is tokenized, and the tokenizer (empty: by its folder)."""

    corpus: str = "The corpus"
    tokenizer: str = ""


@dataclass(frozen=True, slots=True)
class Tokenized:
    """One record after tokenization: ids of its sides, or why it was skipped.

    ``unknown``: unknown pieces; ``folded``: stretches of white space that do not come back from the ids;
    ``special``: strings that are spelt like special tokens and were read as plain text.
    """

    file: str
    id: str
    named: bool
    reason: str | None
    source: np.ndarray
    target: np.ndarray
    unknown: int
    folded: int
    special: int
    pair: bool

    @property
    def empty(self) -> bool:
        """Whether a side has no tokens, so that nothing can be learnt from it."""
        return not self.target.size or (self.pair and not self.source.size)


class Measure:
    """What a tokenizer loses of a text, besides unknown pieces."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        longest_first = sorted(tokenizer.specials, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._survives: dict[str, bool] = {}

    def special(self, text: str) -> int:
        """Strings in ``text`` that are spelt like special tokens."""
        return len(self._special.findall(text))

    def folded(self, text: str) -> int:
        """Stretches of white space in ``text`` that the tokenizer does not give back."""
        lost = 0
        for match in _FOLDABLE.finditer(text):
            before = "a" if match.start() else ""
            after = "b" if match.end() < len(text) else ""
            lost += not self._comes_back(f"{before}{match[0]}{after}")
        return lost

    def _comes_back(self, probe: str) -> bool:
        if probe not in self._survives:
            if len(self._survives) > 10_000:
                self._survives.clear()
            ids = self.tokenizer.probe([probe])[0]
            self._survives[probe] = self.tokenizer.decode(ids) == probe
        return self._survives[probe]


def tokenize_chunk(
    events: Sequence[Document | Skipped], measure: Measure, corpus: str = "The corpus"
) -> pa.Table:
    """The part of these records; a side that is empty or white space has no ids.

    Raises Failed naming ``corpus``, file and line or row where the tokenizer cannot read a document.
    """
    tokenizer = measure.tokenizer
    documents = [event for event in events if isinstance(event, Document)]
    ids = _encode(documents, tokenizer, corpus)
    columns: dict[str, list[object]] = {name: [] for name in _SCHEMA.names}
    for event in events:
        sides = event.sides if isinstance(event, Document) else ()
        taken = [ids.popleft() for _ in sides]
        values = {
            "file": event.file,
            "id": event.id if isinstance(event, Document) else "",
            "named": isinstance(event, Document) and event.named,
            "reason": event.reason if isinstance(event, Skipped) else None,
            "source": taken[0] if len(taken) == 2 else (),
            "target": taken[-1] if taken else (),
            "unknown": sum(int((side == tokenizer.unknown_id).sum()) for side in taken),
            "folded": sum(map(measure.folded, sides)),
            "special": sum(map(measure.special, sides)),
            "pair": len(sides) == 2,
        }
        for name, value in values.items():
            columns[name].append(value)
    return pa.table(columns, schema=_SCHEMA)


def _encode(documents: Sequence[Document], tokenizer: TextTokenizer, corpus: str) -> deque[np.ndarray]:
    texts = [side for document in documents for side in document.sides]
    try:
        ids = tokenizer.encode(texts)
    except Failed:
        for document in documents:
            try:
                tokenizer.encode(document.sides)
            except Failed as error:
                raise Failed(
                    f"{corpus}, file {document.file}, line or row {document.place}: {error}"
                ) from error
        raise
    return deque(found if text.strip() else found[:0] for text, found in zip(texts, ids, strict=True))


def chunked(
    events: Iterable[Document | Skipped], records: int, characters: int = CHUNK_CHARACTERS
) -> Iterator[list[Document | Skipped]]:
    """Stretches of at most ``records`` records or about ``characters`` characters.

    Where ``events`` raise Failed, what came before is yielded first: it may be all that is wanted.
    """
    chunk: list[Document | Skipped] = []
    size = 0
    try:
        for event in events:
            chunk.append(event)
            size += sum(map(len, event.sides)) if isinstance(event, Document) else 0
            if len(chunk) == records or size >= characters:
                yield chunk
                chunk, size = [], 0
    except Failed:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


@dataclass(slots=True)
class PartMaker:
    """Fills ``folder`` with parts; what an earlier run finished there is taken as it is."""

    folder: Path
    tokenizer: Path
    workers: int
    enough: Callable[[int, int], bool]
    """Whether (tokens with end marks, documents) of the parts so far are all that will be wanted."""
    advance: Callable[[int], None]
    """Told how many records each finished part holds."""
    records: int = CHUNK_RECORDS
    shown: Shown = Shown()

    def make(self, events: Iterable[Document | Skipped]) -> None:
        """Make the parts, in order of their need. Raises what reading the records raises, if they are needed."""
        if (self.folder / "complete.json").exists():
            return
        self.folder.mkdir(exist_ok=True)
        if self.workers == 1:
            self._through(events, None)
        else:
            context = get_context("spawn")
            with ProcessPoolExecutor(self.workers, context, initializer=_follow_parent) as pool:
                try:
                    self._through(events, pool)
                except BrokenProcessPool as error:
                    raise Failed(
                        "A process that was tokenizing was killed, perhaps for want of memory. Run the same command "
                        "again: it goes on from the parts that are done (fewer `compute.tokenize.workers` need less)."
                    ) from error
                finally:
                    pool.shutdown(cancel_futures=True)
        write_atomic(self.folder / "complete.json", "{}\n")

    def _through(self, events: Iterable[Document | Skipped], pool: ProcessPoolExecutor | None) -> None:
        tokens = documents = 0
        fault: Failed | None = None
        waiting: deque[dict[str, int] | Future[dict[str, int]]] = deque()
        chunks = enumerate(chunked(events, self.records))
        more = True
        while (more or waiting) and not self.enough(tokens, documents):
            if more and len(waiting) < 2 * self.workers:
                try:
                    index, chunk = next(chunks)
                    waiting.append(self._start(index, chunk, pool))
                except StopIteration:
                    more = False
                except Failed as error:  # raised only if the parts before it are not enough
                    fault, more = error, False
                continue
            done = waiting.popleft()
            record = done.result() if isinstance(done, Future) else done
            tokens, documents = tokens + record["tokens"], documents + record["documents"]
            self.advance(record["records"])
        if fault is not None and not self.enough(tokens, documents):
            raise fault

    def _start(
        self, index: int, chunk: list[Document | Skipped], pool: ProcessPoolExecutor | None
    ) -> dict[str, int] | Future[dict[str, int]]:
        path = self.folder / part_name(index)
        finished = _finished(path, chunk)
        if finished is not None:
            return finished
        work = (path, chunk, self.tokenizer, self.shown)
        return make_part(*work) if pool is None else pool.submit(make_part, *work)


def make_part(path: Path, chunk: list[Document | Skipped], tokenizer: Path, shown: Shown) -> dict[str, int]:
    """Tokenize one chunk into ``path`` and write its completion record, which is returned."""
    table = tokenize_chunk(chunk, _load(tokenizer, shown.tokenizer), shown.corpus)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_file(stream, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    write_atomic(path, stream.getvalue().to_pybytes())
    kept = [row for row in _rows(table) if row.reason is None and not row.empty]
    counts = {
        "records": len(chunk),
        "documents": len(kept),
        "tokens": sum(row.source.size + row.target.size + 1 for row in kept),
    }
    record = {"counts": counts, "digest": digest_file(path), **_ends(chunk)}
    write_atomic(path.with_suffix(".json"), json.dumps(record, sort_keys=True))
    return counts


def read_parts(folder: Path) -> Iterator[Tokenized]:
    """All records of all parts, in order. Raises Damaged for a part that does not equal its record."""
    index = 0
    while (path := folder / part_name(index)).with_suffix(".json").exists():
        record = json.loads(path.with_suffix(".json").read_text())
        if digest_file(path) != record["digest"]:
            raise Damaged(f"{path} changed after it was written; delete its folder and run tokenize again.")
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        yield from _rows(table)
        index += 1


def find_duplicates(folder: Path, records: int) -> Named:
    """Ids that more than one of the first ``records`` records bears, each counted once, in alphabetical order."""
    options = pa.ipc.IpcReadOptions(
        included_fields=[_SCHEMA.get_field_index(name) for name in ("id", "named")]
    )
    tables: list[pa.Table] = []
    while (path := folder / part_name(len(tables))).with_suffix(".json").exists():
        with pa.memory_map(str(path)) as source:
            tables.append(pa.ipc.open_file(source, options=options).read_all())
    table = pa.concat_tables(tables).slice(0, records)
    seen = table.filter(table["named"])["id"].value_counts()
    repeated = np.flatnonzero(seen.field("counts").to_numpy() > 1)
    twice = sorted(seen.field("values").take(pa.array(repeated)).to_pylist())
    return Named(len(twice), twice[:NAMED])


def part_name(index: int) -> str:
    """File name of part ``index``; its record lies beside it with the suffix ``.json``."""
    return f"part-{index:07d}.arrow"


_IDS = pa.list_(pa.int32())
_SCHEMA = pa.schema(
    {
        "file": pa.string(),
        "id": pa.string(),
        "named": pa.bool_(),
        "reason": pa.string(),
        "source": _IDS,
        "target": _IDS,
        "unknown": pa.int32(),
        "folded": pa.int32(),
        "special": pa.int32(),
        "pair": pa.bool_(),
    }
)


def _rows(table: pa.Table) -> Iterator[Tokenized]:
    table = table.combine_chunks()
    plain = [table[name].to_pylist() for name in ("file", "id", "named", "reason")]
    counts = [table[name].to_pylist() for name in ("unknown", "folded", "special", "pair")]
    sides = [_split(table[name]) for name in ("source", "target")]
    for values in zip(*plain, *sides, *counts, strict=True):
        yield Tokenized(*values)


def _split(column: pa.ChunkedArray) -> list[np.ndarray]:
    if not column.num_chunks:
        return []
    array = column.chunk(0)
    offsets = array.offsets.to_numpy()
    return np.split(array.values.to_numpy(), offsets[1:-1]) if len(array) else []


def _finished(path: Path, chunk: list[Document | Skipped]) -> dict[str, int] | None:
    try:
        record = json.loads(path.with_suffix(".json").read_text())
        same = {name: record[name] for name in ("first", "last")} == _ends(chunk)
        whole = same and record["counts"]["records"] == len(chunk) and digest_file(path) == record["digest"]
    except (OSError, ValueError, KeyError):
        return None
    return record["counts"] if whole else None


def _ends(chunk: list[Document | Skipped]) -> dict[str, list[str | int]]:
    return {"first": [chunk[0].file, chunk[0].place], "last": [chunk[-1].file, chunk[-1].place]}


@cache
def _load(folder: Path, shown: str) -> Measure:
    return Measure(load_tokenizer(folder, shown))


def _follow_parent() -> None:
    """Die with the parent, even one killed by -9, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
