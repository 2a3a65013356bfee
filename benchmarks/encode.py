"""The encode stage against a bare loop over its encoder, and that encoder against transformers' own.

    .venv/bin/python benchmarks/encode.py [--threads 1]

The encoder has t5-small's shape and random weights. The stage is timed whole: rows read, encoded, checked, hashed,
written, a sample encoded again; the bare loop gives the same batches to the same encoder and throws the states away.
transformers' side is eager T5 with an attention mask, the usual way to embed text with it.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from literal_step import T5_SMALL
from measuring import HALF, Bar, finish, has_half, medians
from transformers import T5Config, T5EncoderModel

from elf.cache.store import Artifact
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import Compute, StageContext
from elf.stages import encode
from elf.stages.config import Encode
from elf.stages.encoder import Encoder, describe_encoder, load_encoder
from elf.stages.rows import TokenRows
from elf.stages.workload import read_shape

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from tokens import make_tokens
from toy_training import finish as finish_artifact

ROWS, LENGTH = 192, 128
LONG = 1024
BATCH_TOKENS = 4096


def make_encoder(folder: Path) -> Path:
    torch.manual_seed(0)
    T5EncoderModel(T5Config(**T5_SMALL)).save_pretrained(folder)
    return folder


def make_rows(folder: Path) -> Artifact:
    """``ROWS`` full rows of random words."""
    words = [f"w{number}" for number in range(1000)]
    random = np.random.default_rng(0)
    documents = [" ".join(random.choice(words, 4 * LENGTH - 1)) for _ in range(ROWS // 4)]
    make_tokens(folder, documents, words=words, length=LENGTH)
    return finish_artifact(folder, "tokenize", {"rows": ROWS}, {})


def stage_over_bare(folder: Path, encoder: Encoder, threads: int) -> float:
    """Tokens a second of the stage in parts of those of a bare loop."""
    tokens = make_rows(folder / "tokens")
    source = finish_artifact(encoder.info.folder.parent, "fetch", {}, {})
    rows, size = TokenRows.open(tokens.path), BATCH_TOKENS // LENGTH
    assert rows.rows == ROWS
    compute = Compute(device="cpu", threads=threads, workers=1, batch_tokens=BATCH_TOKENS)
    turn = iter(range(100))

    def stage() -> None:
        out = folder / f"out-{next(turn)}"
        out.mkdir()
        context = StageContext(out, {"tokens": tokens, "encoder": source}, compute, LineProgress(every=1e9))
        encode.run(Encode(dtype="float16"), context)

    def bare() -> None:
        for start in range(0, ROWS, size):
            batch = np.arange(start, min(start + size, ROWS))
            encoder.states(torch.from_numpy(rows.ids(batch).astype(np.int64))).to(torch.float16)

    seconds = medians({"stage": stage, "bare": bare}, rounds=1)
    print(
        f"bare loop {ROWS * LENGTH / seconds['bare']:,.0f} tokens/s, stage {ROWS * LENGTH / seconds['stage']:,.0f}"
    )
    return seconds["bare"] / seconds["stage"]


def eager_over_ours(folder: Path, ours: Encoder, length: int) -> float:
    """Seconds of transformers' eager float32 T5 with a mask over ours, rows without padding.

    Tells besides how long the encoder's products alone would take at the speed of a large float32 one.
    """
    theirs = T5EncoderModel.from_pretrained(
        folder,
        attn_implementation="eager",
        dtype=torch.float32,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
    )
    theirs.eval()
    ids_BL = torch.randint(2, 32000, (max(1, 2048 // length), length))
    mask_BL = torch.ones_like(ids_BL)

    @torch.inference_mode()
    def eager() -> torch.Tensor:
        return theirs(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state

    mine = partial(ours.states, ids_BL)
    left, right = (
        torch.randn(ids_BL.numel(), T5_SMALL["d_model"]),
        torch.randn(T5_SMALL["d_ff"], T5_SMALL["d_model"]),
    )
    product = partial(torch.nn.functional.linear, left, right)
    distance = float((eager() - mine().float()).norm() / eager().norm())
    seconds = medians({"eager": eager, "ours": mine, "product": product}, rounds=3)
    print(f"L {length}, {ours.info.compute}: relative distance from eager float32 {distance:.1e}")
    shape = read_shape(folder, None)
    assert shape is not None
    least = ids_BL.numel() * shape.flops(length) * seconds["product"] / (2 * left.numel() * len(right))
    print(
        f"    as bare float32 products it would take {least / seconds['ours']:.2f} of our time, "
        f"{least / seconds['eager']:.2f} of eager's: at most {seconds['eager'] / least:.2f} can be gained"
    )
    return seconds["eager"] / seconds["ours"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The encode stage against a bare loop and against transformers."
    )
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as name:
        folder = make_encoder(Path(name) / "encoder" / "data")
        info = describe_encoder(folder, layer=None, compute="float32")
        ours = load_encoder(info)
        bars = [
            Bar("encode stage / bare loop, tokens a second", stage_over_bare(Path(name), ours, threads), 0.9),
            Bar(f"eager T5 / ours, L {LONG}, float32", eager_over_ours(folder, ours, LONG), 1.8),
        ]
        print(f"L {LENGTH}, float32: eager takes {eager_over_ours(folder, ours, LENGTH):.2f} × our time")
        if has_half():
            half = load_encoder(describe_encoder(folder, layer=None, compute="bfloat16"))
            bars += [
                Bar(
                    f"eager float32 / ours, L {length}, bfloat16",
                    eager_over_ours(folder, half, length),
                    target,
                )
                for length, target in ((LONG, 3.0), (LENGTH, 1.9))
            ]
        else:
            print(f"bfloat16: not measured, this CPU has none of {', '.join(HALF)}")
    finish(bars)


if __name__ == "__main__":
    main()
