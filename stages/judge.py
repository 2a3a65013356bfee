"""The judge: a causal language model that says how surprising a text is, by the rules of `elf.stages.protocol`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.protocol import Judged, Tokens, counted_tokens
from elf.stages.textstats import unigram_entropy
from elf.stages.weight_files import read_headers, refuse_other_numbers, spellings


class Judge:
    """A causal LM and its tokenizer, in one precision on one device."""

    def __init__(self, model: Any, tokenizer: Any, *, window: int, end_ids: frozenset[int]) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.window = window
        self.end_ids = end_ids

    def tokenize(self, texts: Sequence[str]) -> list[Tokens]:
        """Judge ids of each text; an empty text has none. Raises Failed for ids that the model has not."""
        if not texts:
            return []
        every = self.tokenizer(list(texts), return_attention_mask=False, verbose=False)["input_ids"]
        largest, known = max(map(max, filter(None, every)), default=0), self._known()
        if largest >= known:
            raise Failed(
                f"The judge's tokenizer gives id {largest}, but its model knows {known:,} ids: they do not belong "
                "together. Name a judge with its own tokenizer."
            )
        return [Tokens(tuple(ids[: self.window]), len(ids) > self.window) for ids in every]

    def _known(self) -> int:
        return self.model.get_input_embeddings().weight.shape[0]

    def score(self, batch: Sequence[Tokens]) -> list[Judged]:
        """Score texts in one call; the result of each does not depend on the others (float32: 1e-6 relative)."""
        nlls = self.token_nlls([text.ids for text in batch])
        return [self._judged(text, values) for text, values in zip(batch, nlls, strict=True)]

    @torch.inference_mode()
    def token_nlls(self, batch: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """NLL of every token but the first, per text: float32 (len − 1,), on the CPU."""
        longest = max((len(ids) for ids in batch), default=0)
        if longest < 2:
            return [torch.empty(0) for _ in batch]
        device = self.model.device
        ids_BL = torch.zeros(len(batch), longest, dtype=torch.long)
        mask_BL = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, ids in enumerate(batch):
            ids_BL[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
            mask_BL[row, : max(len(ids), 1)] = 1  # a wholly masked row has no softmax
        ids_BL, mask_BL = ids_BL.to(device), mask_BL.to(device)
        logits_BLV = self.model(input_ids=ids_BL, attention_mask=mask_BL, use_cache=False).logits
        return [
            F.cross_entropy(
                logits_BLV[row, : len(ids) - 1].float(), ids_BL[row, 1 : len(ids)], reduction="none"
            ).cpu()
            if len(ids) > 1
            else torch.empty(0)
            for row, ids in enumerate(batch)
        ]

    def _judged(self, text: Tokens, nlls: torch.Tensor) -> Judged:
        counts = torch.tensor(counted_tokens(text.ids, self.end_ids)[1:], dtype=torch.float64)
        return Judged(
            nll=float((nlls.double() * counts).sum()),
            counted=int(counts.sum()),
            tokens=len(text.ids),
            entropy=unigram_entropy(text.ids),
            truncated=text.truncated,
            end_marks=sum(token in self.end_ids for token in text.ids),
        )


def load_judge(folder: Path, *, window: int, precision: str, device: str) -> Judge:
    """Load the judge from the files of a model folder, none of them code or a pickle.

    Raises Failed or Misconfigured in one paragraph.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        headers = read_headers(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        loader: Any = AutoModelForCausalLM
        model, loaded = loader.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=getattr(torch, precision),
            output_loading_info=True,
        )
    except (
        Exception
    ) as error:  # damaged files raise what the libraries happen to meet: SafetensorError, TypeError, …
        raise Failed(
            f"The judge in {folder} cannot be loaded as a causal language model with its tokenizer: "
            f"{(str(error).strip() or type(error).__name__).splitlines()[0].rstrip('.')}. The asset must hold "
            "config.json, a tokenizer and weights in safetensors; no code of it is run and no pickle is read."
        ) from error
    if absent := sorted(loaded["missing_keys"]):
        raise Failed(
            f"The judge in {folder} lacks weights, {absent[0]} among {len(absent)}: random numbers would stand in "
            "their place. Fetch the whole model."
        )
    read_as_they_are = getattr(model.config, "quantization_config", None) is None
    if read_as_they_are:
        read = (name for name, _ in model.named_parameters())
        refuse_other_numbers(headers, spellings(read, model.base_model_prefix))
    if not tokenizer("a")["input_ids"]:
        raise Failed(
            f"The judge's tokenizer in {folder} knows no letter: its vocabulary is missing. Fetch it whole."
        )
    longest = _longest_window(model.config)
    if longest is not None and window > longest:
        raise Misconfigured(
            f"evaluate.judge.window is {window}, but the judge in {folder} reads {longest} tokens at most; "
            f"set evaluate.judge.window to {longest} or less."
        )
    return Judge(model.to(device).eval(), tokenizer, window=window, end_ids=_end_ids(model, tokenizer))


def _longest_window(config: Any) -> int | None:
    plain = config.to_dict()
    return next((plain[name] for name in ("max_position_embeddings", "n_positions") if plain.get(name)), None)


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokenizer's end mark; the model's own where the tokenizer names none."""
    if tokenizer.eos_token_id is not None:
        return frozenset({int(tokenizer.eos_token_id)})
    declared = model.config.eos_token_id
    if declared is None:
        return frozenset()
    return frozenset(declared if isinstance(declared, list) else [declared])
