"""Scoring texts by a judge against a bare loop of its forward pass over the same texts, longest first.

    .venv/bin/python benchmarks/evaluate.py [--threads 1] [--texts 32]

The judge is a GPT-2 of 6 layers × 512 with random weights and as many tokens as GPT-2 has; texts are of 5 to 500 of
its tokens. The product's side is what the evaluate stage does with its judge: tokenise, batch, call, cross-entropy,
record. The bare loop is given the same texts tokenised, sorted and padded, and throws the logits away. A score must not
depend on its neighbours: the shorter half is scored one by one besides.
"""

import argparse
import tempfile
from collections.abc import Sequence
from io import StringIO
from itertools import count
from pathlib import Path

import numpy as np
import torch
from measuring import Bar, finish, medians
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from elf.cache.files import make_folder
from elf.pipeline.progress import LineProgress
from elf.stages.judge import Judge, load_judge
from elf.stages.judging import judge_texts
from elf.stages.memory import keep_freed_memory
from elf.stages.protocol import TOKENS_PER_CALL, Judged, plan_batches
from elf.stages.texts import Text

VOCABULARY, WIDTH, LAYERS, WINDOW = 50257, 512, 6, 1024
SHORTEST, LONGEST = 5, 500


def make_judge(folder: Path) -> Judge:
    """Every word is a token of its own."""
    disable_progress_bar()
    pieces = {f"w{number}": number for number in range(1, VOCABULARY)} | {"<|endoftext|>": 0}
    plain = Tokenizer(models.WordLevel(pieces, unk_token="<|endoftext|>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|endoftext|>").save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=WINDOW, n_embd=WIDTH, n_layer=LAYERS, n_head=8, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return load_judge(folder, window=WINDOW, precision="float32", device="cpu")


def make_texts(number: int) -> list[Text]:
    """Random words; lengths spread evenly on a logarithmic scale, in no order."""
    random = np.random.default_rng(0)
    lengths = np.geomspace(SHORTEST, LONGEST, number).round().astype(int)
    words = [random.integers(1, VOCABULARY, length) for length in random.permutation(lengths)]
    return [Text(place, 0, " ".join(f"w{word}" for word in each)) for place, each in enumerate(words)]


class Sides:
    """The product's path and the bare loop over the same texts."""

    def __init__(self, judge: Judge, texts: Sequence[Text], folder: Path) -> None:
        self.judge, self.texts, self.folder = judge, texts, folder
        self.turns = count()
        self.ids = [text.ids for text in judge.tokenize([text.text for text in texts])]
        self.tokens = sum(map(len, self.ids))
        lengths = [len(ids) for ids in self.ids]
        self.batches = [
            self.padded(batch) for batch in plan_batches(lengths, rows=None, tokens=TOKENS_PER_CALL["cpu"])
        ]

    def padded(self, batch: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and mask."""
        longest = max(len(self.ids[place]) for place in batch)
        ids_BL, mask_BL = (torch.zeros(len(batch), longest, dtype=torch.long) for _ in range(2))
        for row, place in enumerate(batch):
            ids_BL[row, : len(self.ids[place])] = torch.tensor(self.ids[place])
            mask_BL[row, : len(self.ids[place])] = 1
        return ids_BL, mask_BL

    def product(self, texts: Sequence[Text] | None = None, rows: int | None = None) -> list[Judged]:
        parts = make_folder(self.folder / f"parts-{next(self.turns)}")
        chosen = self.texts if texts is None else texts
        return judge_texts(chosen, self.judge, rows=rows, parts=parts, progress=LineProgress(StringIO()))

    @torch.inference_mode()
    def bare(self) -> None:
        for ids_BL, mask_BL in self.batches:
            _ = self.judge.model(input_ids=ids_BL, attention_mask=mask_BL, use_cache=False).logits

    def distance(self) -> float:
        """Largest relative difference of a text's NLL from that of the text alone, of the shorter half."""
        short = sorted(self.texts, key=lambda text: len(text.text))[: len(self.texts) // 2]
        pairs = zip(self.product(short), self.product(short, rows=1), strict=True)
        return max(abs(one.nll - other.nll) / other.nll for one, other in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Scoring texts against a bare loop of the judge's forward pass."
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--texts", type=int, default=32)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_freed_memory()  # as the stage does
    with tempfile.TemporaryDirectory() as name:
        sides = Sides(make_judge(Path(name) / "judge"), make_texts(given.texts), Path(name))
        padded = sum(ids_BL.numel() for ids_BL, _ in sides.batches)
        print(
            f"{given.texts} texts, {sides.tokens:,} tokens, {padded / sides.tokens - 1:.1%} padding besides"
        )
        seconds = medians({"bare forward loop": sides.bare, "evaluate's judge": sides.product}, rounds=2)
        print(f"{'':<20}  {'tokens/s':>8}")
        for side, each in seconds.items():
            print(f"{side:<20}  {sides.tokens / each:>8,.0f}")
        speed = seconds["bare forward loop"] / seconds["evaluate's judge"]
        bars = [
            Bar("evaluate / bare forward loop, tokens a second", speed, 0.85),
            Bar("a text's NLL alone and in a batch", sides.distance(), 1e-4, at_most=True),
        ]
    finish(bars)


if __name__ == "__main__":
    main()
