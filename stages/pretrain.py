"""Stage ``pretrain``: a small T5 trained from scratch by span corruption on the run's own rows.

    tokens → data/ (a Hugging Face T5 folder with its tokenizer), curve.jsonl

The last rows are held out; the facts set the loss on what is hidden there beside that of the unigram distribution.
Order and corruption are pure functions of (seed, step, row) and a run that was killed goes on from its last
checkpoint, so that the same folder comes out to the last bit.
"""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration
from transformers.utils.logging import disable_progress_bar

from elf.cache.files import remove_strays, write_atomic
from elf.cache.manifest import JSON
from elf.pipeline.devices import note_devices
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.progress import Progress
from elf.pipeline.stage import StageContext
from elf.pipeline.wording import count_of
from elf.stages.config import Pretrain
from elf.stages.devices import choose_device, describe_devices
from elf.stages.memory import keep_freed_memory, set_threads
from elf.stages.order import Order
from elf.stages.rows import TokenRows
from elf.stages.span_corruption import IGNORED, Corruption, find_sentinels, pad, row_random
from elf.stages.vocabulary import load_tokenizer

HELDOUT_SHARE = 10
HELDOUT_MOST = 256
HELDOUT_STEP = -1
"""The step that held-out rows are corrupted by: the same every time, and none of training."""
CHECKPOINT = "checkpoint.safetensors"
CURVE = "curve.jsonl"
CHECKPOINTS = 10
FARTHEST_APART = 500


def run(section: Pretrain, context: StageContext) -> Mapping[str, JSON]:
    """Train, save, measure. Facts: ``loss_first``, ``loss_last`` (means of a tenth of the steps), ``heldout_nll``
    and ``unigram_nll`` (nats per hidden token), sizes. Without a step there is no loss, and both are null.

    Raises Failed where there are too few rows or a number is not finite, Misconfigured where sentinels run out.
    """
    device = choose_device(context.compute.device)
    if device == "cpu":
        keep_freed_memory()
    set_threads(context.compute.threads)
    note_devices(context.out, describe_devices(device))
    corpus = Corpus.open(context.inputs["tokens"].path, section)
    trainer = Trainer(section, corpus, context.out, torch.device(device))
    with ExitStack() as stack:
        trainer.restore()
        bar = stack.enter_context(
            context.progress.bar("pretrain", section.steps, unit="steps", done=trainer.step)
        )
        while trainer.step < section.steps:
            loss = trainer.advance()
            bar.advance(1, loss=loss)
    facts = _facts(trainer)
    _note_little(facts, section.steps, context.progress)
    _save(trainer, context.inputs["tokens"].path / "tokenizer", context.out)
    return facts


@dataclass(frozen=True, slots=True)
class Corpus:
    """Rows to train on, ``[0, train)``, and rows held out, ``[train, rows)``."""

    rows: TokenRows
    train: int
    corruption: Corruption
    vocabulary: int
    pad_id: int

    @classmethod
    def open(cls, tokens: Path, section: Pretrain) -> "Corpus":
        """Raises Failed with fewer than 2 rows, Misconfigured where the model's width and heads disagree."""
        rows = TokenRows.open(tokens)
        if rows.rows < 2 or rows.length < 2:
            raise Failed(
                f"Pretraining needs at least 2 rows of at least 2 tokens; there are {rows.rows} of {rows.length}. "
                "Bring more text (data.train)."
            )
        if section.width % section.heads:
            raise Misconfigured(
                f"pretrain.width is {section.width} and pretrain.heads {section.heads}; the width must be a multiple "
                "of the heads."
            )
        tokenizer = load_tokenizer(tokens / "tokenizer")
        corruption = Corruption(
            density=section.noise_density,
            mean_span=section.mean_span,
            sentinels=find_sentinels(dict(tokenizer.specials)),
            end_id=rows.vocabulary.end_id,
        )
        corruption.spans(rows.length)
        held = min(max(rows.rows // HELDOUT_SHARE, 1), HELDOUT_MOST)
        return cls(rows, rows.rows - held, corruption, tokenizer.size, rows.vocabulary.pad_id)

    @property
    def heldout(self) -> np.ndarray:
        """Indices of the rows held out."""
        return np.arange(self.train, self.rows.rows)

    def tokens(self, rows: np.ndarray) -> list[np.ndarray]:
        """Ids of each row without its padding."""
        whole, lengths = self.rows.ids(rows), self.rows.lengths(rows)
        return [ids[:length] for ids, length in zip(whole, lengths.tolist(), strict=True)]

    def batch(self, rows: np.ndarray, seed: int, step: int) -> dict[str, Tensor]:
        """What the model is given: ``input_ids``, ``attention_mask``, ``labels``; rows of one token are left out."""
        pairs = [
            self.corruption.apply(ids, row_random(seed, step, int(row)))
            for row, ids in zip(rows, self.tokens(rows), strict=True)
            if ids.size > 1
        ]
        if not pairs:
            raise Failed(
                f"The batch of step {step + 1} of pretraining has no row of two tokens or more, so there is nothing to "
                "hide. Raise pretrain.batch, or bring longer texts."
            )
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        seen = [np.ones(source.size, np.int64) for source in sources]
        arrays = {
            "input_ids": pad(sources, self.pad_id),
            "attention_mask": pad(seen, 0),
            "labels": pad(targets, IGNORED),
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class Trainer:
    """Model, optimiser and curve after ``step`` steps."""

    def __init__(self, section: Pretrain, corpus: Corpus, out: Path, device: torch.device) -> None:
        self.section, self.corpus, self.out, self.device = section, corpus, out, device
        model: Any = make_model(section, corpus)
        self.model = model.to(device)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=section.lr, betas=(0.9, 0.98), weight_decay=0.0
        )
        self.order = Order(corpus.train, section.seed)
        self.step = 0
        self.curve: list[dict[str, float]] = []

    def advance(self) -> float:
        """One step; returns its loss. Raises Failed where loss or gradient is not finite."""
        section = self.section
        rows = self.order.batch(self.step, section.batch)
        batch = self.corpus.batch(rows, section.seed, self.step)
        rate = section.lr * learning_rate(self.step, section.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        loss = self.model(**{name: tensor.to(self.device) for name, tensor in batch.items()}).loss
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        value, size = loss.item(), norm.item()
        if not (math.isfinite(value) and math.isfinite(size)):
            raise Failed(
                f"Step {self.step} of pretraining has loss {value} and gradient norm {size}; nothing was saved "
                f"since the last checkpoint. Lower pretrain.lr (now {section.lr:g})."
            )
        self.optimiser.step()
        self.curve.append({"step": self.step, "loss": value, "lr": rate, "grad_norm": size})
        self.step += 1
        if self.step % min(max(section.steps // CHECKPOINTS, 1), FARTHEST_APART) == 0:
            self.save()
        return value

    def save(self) -> None:
        """Write the checkpoint: weights, optimiser and curve in one file that is whole or absent."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimiser.state[parameter].items():
                tensors[f"optimiser.{key}.{name}"] = value
        written = {"step": str(self.step), "curve": json.dumps(self.curve)}
        content = save(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, written
        )
        write_atomic(self.out / CHECKPOINT, content)

    def restore(self) -> None:
        """Go back to the last checkpoint, where there is one."""
        remove_strays(self.out)
        path = self.out / CHECKPOINT
        if not path.exists():
            return
        try:
            self._load(path)
        except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise Failed(
                f"The checkpoint {path} cannot be gone on from: {error}. Delete it to begin the pretraining again."
            ) from error

    def _load(self, path: Path) -> None:
        with safe_open(path, framework="pt", device=str(self.device)) as file:
            metadata = file.metadata()
            self.step, self.curve = int(metadata["step"]), json.loads(metadata["curve"])
            for name, parameter in self.model.named_parameters():
                parameter.data.copy_(file.get_tensor(f"model.{name}"))
                state: dict[str, Tensor] = {}
                for key in ("step", "exp_avg", "exp_avg_sq"):
                    value = file.get_tensor(f"optimiser.{key}.{name}")
                    state[key] = value.cpu() if key == "step" else value
                self.optimiser.state[parameter] = state


def make_model(section: Pretrain, corpus: Corpus) -> T5ForConditionalGeneration:
    """A T5 with weights drawn from the seed; without dropout, so that a step is a function of its rows."""
    config = T5Config(
        vocab_size=corpus.vocabulary,
        d_model=section.width,
        d_kv=section.width // section.heads,
        d_ff=section.feed_forward,
        num_layers=section.layers,
        num_heads=section.heads,
        dropout_rate=0.0,
        pad_token_id=corpus.pad_id,
        eos_token_id=corpus.corruption.end_id,
    )
    config.decoder_start_token_id = corpus.pad_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(section.seed)
        return T5ForConditionalGeneration(config)


def learning_rate(step: int, steps: int) -> float:
    """Share of the highest rate: up over the first tenth, then down along a cosine to a tenth of it."""
    warmup = max(steps // 10, 1)
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))


@torch.no_grad()
def heldout_nll(trainer: Trainer) -> tuple[float, float, int]:
    """Nats per hidden token on the rows held out, by the model and by the unigram distribution of the training rows
    (one added to every count), and how many tokens that is. Sentinels and end marks do not count."""
    corpus = trainer.corpus
    counts = np.ones(corpus.vocabulary, np.int64)
    for start in range(0, corpus.train, 4096):
        for ids in corpus.tokens(np.arange(start, min(start + 4096, corpus.train))):
            np.add.at(counts, ids, 1)
    unigram = torch.from_numpy(np.log(counts.sum()) - np.log(counts))
    marks = torch.tensor([*corpus.corruption.sentinels, corpus.corruption.end_id, IGNORED])
    model = plain = 0.0
    tokens = 0
    trainer.model.eval()
    size = trainer.section.batch
    for start in range(0, corpus.heldout.size, size):
        batch = corpus.batch(corpus.heldout[start : start + size], trainer.section.seed, HELDOUT_STEP)
        logits = trainer.model(**{name: tensor.to(trainer.device) for name, tensor in batch.items()}).logits
        hidden = ~torch.isin(batch["labels"], marks)
        wanted = batch["labels"][hidden]
        chances = torch.log_softmax(logits.cpu()[hidden].double(), dim=-1)
        model -= float(chances.gather(1, wanted[:, None]).sum())
        plain += float(unigram[wanted].sum())
        tokens += wanted.numel()
    return model / max(tokens, 1), plain / max(tokens, 1), tokens


def _facts(trainer: Trainer) -> dict[str, JSON]:
    model, unigram, tokens = heldout_nll(trainer)
    if not math.isfinite(model):
        raise Failed("The pretrained model gives no finite loss on the rows held out; lower pretrain.lr.")
    losses = [entry["loss"] for entry in trainer.curve]
    return {
        "loss_first": _mean(losses[: max(len(losses) // 10, 1)]),
        "loss_last": _mean(losses[-max(len(losses) // 10, 1) :]),
        "heldout_nll": model,
        "unigram_nll": unigram,
        "heldout_rows": int(trainer.corpus.heldout.size),
        "heldout_tokens": tokens,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "vocabulary": trainer.corpus.vocabulary,
    }


def _note_little(facts: Mapping[str, Any], steps: int, progress: Progress) -> None:
    """Say so where training taught less than the frequencies of tokens tell; without a step that is no wonder."""
    model, unigram = facts["heldout_nll"], facts["unigram_nll"]
    if steps and facts["heldout_tokens"] and model >= unigram:
        progress.note(
            f"After {count_of(steps, 'step')} the encoder guesses hidden tokens worse than their frequencies alone "
            f"would ({model:.4g} nats a token on the rows held out, against {unigram:.4g}): enough to see that "
            "everything runs; for good texts raise pretrain.steps."
        )


def _mean(numbers: Sequence[float]) -> float | None:
    return math.fsum(numbers) / len(numbers) if numbers else None


def _save(trainer: Trainer, tokenizer: Path, out: Path) -> None:
    data = out / "data"
    disable_progress_bar()
    trainer.model.eval().cpu().save_pretrained(data)
    for path in sorted(tokenizer.iterdir()):
        shutil.copyfile(path, data / path.name)
    write_atomic(out / CURVE, "".join(json.dumps(entry) + "\n" for entry in trainer.curve))
    (out / CHECKPOINT).unlink(missing_ok=True)
