"""A frozen encoder from a Hugging Face folder: token ids in, raw hidden states out, nothing pooled or normalised.

T5 and mT5 give their encoder stack (``elf.stages.fast_t5``); BERT and its kin come through transformers'
``AutoModel``. Layers above the one that is read are not even loaded. Hidden layer 0 is the embeddings. For T5 a layer
below the last is the residual stream, the last one (or None) comes after the final norm, as in transformers'
``hidden_states``.
Shapes: B batch, L positions, D width; masks are (B, L or 1, L), query × key, True = sees.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.encoder_files import CONFIG, digest_encoder, read_config, read_weights, stored_dtype
from elf.stages.fast_t5 import FastT5, T5Shape
from elf.stages.model.masks import additive
from elf.stages.weight_files import WHOLE, read_headers, refuse_other_numbers, spellings

Hidden: TypeAlias = Callable[[Tensor, Tensor | None], Iterator[Tensor]]

COMPUTE: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
T5_TYPES = ("t5", "mt5")
BERT_TYPES = ("bert", "distilbert", "electra", "roberta", "xlm-roberta")
_UNUSED_POSITIONS = {"roberta": 2, "xlm-roberta": 2}
"""Rows at the head of the position table that no token uses."""


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """What is known of an encoder without loading its weights.

    ``layer`` is the hidden layer that is read, of ``layers``; ``longest`` the most positions it takes (None: any);
    ``weights`` the dtype they are stored as; ``digest`` that of weights and configuration.
    """

    folder: Path
    kind: str
    model_type: str
    width: int
    layers: int
    layer: int
    vocabulary: int
    longest: int | None
    compute: str
    weights: str
    digest: str


class Numbers(NamedTuple):
    """What a model's configuration says of it; ``longest`` the most positions it takes (None: any)."""

    width: int
    layers: int
    vocabulary: int
    longest: int | None


@dataclass(frozen=True, slots=True)
class Family:
    """How models of a type are read.

    ``numbers`` takes ``config.json`` and may raise KeyError, OverflowError, TypeError or ValueError; ``load`` gives the
    hidden states 0 … ``info.layer`` of token ids (B, L) under an additive mask. ``kind`` names what computes them in
    messages.
    """

    kind: str
    numbers: Callable[[Mapping[str, Any]], Numbers]
    load: Callable[[EncoderInfo, torch.device, torch.dtype], Hidden]


class Encoder:
    """An encoder in memory. Open it with ``load_encoder``."""

    def __init__(self, info: EncoderInfo, hidden: Hidden, device: torch.device) -> None:
        self.info = info
        self.device = device
        self._hidden = hidden

    @torch.inference_mode()
    def states(self, ids_BL: Tensor, mask: Tensor | None = None) -> Tensor:
        """Raw states (B, L, D) of the layer that is read, in the compute dtype, on the encoder's device.

        Without a mask every position sees every other. A query without any key attends uniformly over all keys.
        Raises Failed for ids outside the encoder's vocabulary.
        """
        state = None
        for state in self.trace(ids_BL, mask):  # noqa: B007 (earlier states are freed as the loop goes on)
            pass
        assert state is not None
        return state

    @torch.inference_mode()
    def trace(self, ids_BL: Tensor, mask: Tensor | None = None) -> Iterator[Tensor]:
        """Hidden states 0 … ``info.layer`` in turn."""
        self._check(ids_BL)
        scores = None if mask is None else additive(mask.to(self.device), COMPUTE[self.info.compute])
        yield from self._hidden(ids_BL.to(self.device), scores)

    def _check(self, ids_BL: Tensor) -> None:
        if ids_BL.device.type == "cpu" and ids_BL.numel():
            lowest, highest = (int(bound) for bound in torch.aminmax(ids_BL))
            if lowest < 0 or highest >= self.info.vocabulary:
                raise Failed(
                    f"Token id {lowest if lowest < 0 else highest} is outside the encoder's vocabulary: it embeds "
                    f"{self.info.vocabulary:,} ids. Tokenize with the encoder's own tokenizer."
                )


def describe_encoder(folder: Path, *, layer: int | None, compute: str) -> EncoderInfo:
    """What the encoder in ``folder`` is. Reads its configuration and its weights' headers and digest.

    Raises Failed for a folder that holds no usable encoder, Misconfigured for a layer or compute dtype it does
    not have; float16 compute is always refused.
    """
    if compute not in COMPUTE:
        raise Misconfigured(
            f"encode.compute is {compute}, in which T5's residuals overflow; compute in float32 or bfloat16 (what is "
            "stored may still be float16: encode.dtype)."
        )
    config = read_config(folder)
    model_type = str(config["model_type"])
    if model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise Failed(f"The model in {folder} is a {model_type}; as frozen encoder these are known: {known}.")
    family = FAMILIES[model_type]
    try:
        width, layers, vocabulary, longest = family.numbers(config)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise Failed(
            f"{folder / CONFIG} does not describe a {model_type} encoder: {error}. {WHOLE}"
        ) from error
    if layer is not None and not 0 <= layer <= layers:
        raise Misconfigured(
            f"encode.layer is {layer}, but the {model_type} encoder in {folder} has hidden layers 0 to {layers}."
        )
    return EncoderInfo(
        folder=folder,
        kind=family.kind,
        model_type=model_type,
        width=width,
        layers=layers,
        layer=layers if layer is None else layer,
        vocabulary=vocabulary,
        longest=longest,
        compute=compute,
        weights=stored_dtype(folder),
        digest=digest_encoder(folder),
    )


def load_encoder(info: EncoderInfo, device: str = "cpu") -> Encoder:
    """The encoder on ``device``, in evaluation mode and its compute dtype.

    Raises Failed where weights that are needed are missing from the folder or have another shape.
    """
    target = torch.device(device)
    hidden = FAMILIES[info.model_type].load(info, target, COMPUTE[info.compute])
    return Encoder(info, hidden, target)


def _t5_numbers(config: Mapping[str, Any]) -> Numbers:
    shape = T5Shape.of(config)
    return Numbers(shape.width, shape.layers, shape.vocabulary, None)


def _bert_numbers(config: Mapping[str, Any]) -> Numbers:
    model_type = str(config["model_type"])
    width, layers = (
        ("dim", "n_layers") if model_type == "distilbert" else ("hidden_size", "num_hidden_layers")
    )
    longest = int(config["max_position_embeddings"]) - _UNUSED_POSITIONS.get(model_type, 0)
    return Numbers(int(config[width]), int(config[layers]), int(config["vocab_size"]), longest)


def _load_t5(info: EncoderInfo, device: torch.device, dtype: torch.dtype) -> Hidden:
    shape = T5Shape.of(read_config(info.folder))
    wanted = shape.weights(info.layer)
    found = read_weights(info.folder, [*wanted, "encoder.embed_tokens.weight"])
    if "shared.weight" not in found and "encoder.embed_tokens.weight" in found:
        found["shared.weight"] = found["encoder.embed_tokens.weight"]
    wrong = [
        f"{name} ({tuple(found[name].shape)} instead of {size})" if name in found else name
        for name, size in wanted.items()
        if name not in found or tuple(found[name].shape) != size
    ]
    _refuse_incomplete(info, wrong)
    return FastT5(shape, found, info.layer).to(device, dtype).eval().hidden


def _load_bert(info: EncoderInfo, device: torch.device, dtype: torch.dtype) -> Hidden:
    from transformers import AutoConfig, AutoModel  # seconds to import, and T5 does without
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(info.folder, local_files_only=True, trust_remote_code=False)
        config.num_hidden_layers = info.layer
        model, report = AutoModel.from_pretrained(
            info.folder,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise Failed(f"The encoder in {info.folder} cannot be loaded: {error}. {WHOLE}") from error
    finally:
        logging.set_verbosity(verbosity)
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    _refuse_incomplete(info, missing + [str(each) for each in report["mismatched_keys"]])
    if isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = None
    read = spellings((name for name, _ in model.named_parameters()), model.base_model_prefix)
    refuse_other_numbers(read_headers(info.folder), read)
    network = model.requires_grad_(requires_grad=False).to(device, dtype).eval()

    def hidden(ids_BL: Tensor, mask_B1QK: Tensor | None) -> Iterator[Tensor]:
        # transformers takes a mask with a row for every query only
        square = None if mask_B1QK is None else mask_B1QK.expand(-1, -1, mask_B1QK.shape[-1], -1)
        output = network(input_ids=ids_BL, attention_mask=square, output_hidden_states=True)
        yield from output.hidden_states[:-1]
        yield output.last_hidden_state

    return hidden


def _refuse_incomplete(info: EncoderInfo, wrong: list[str]) -> None:
    if wrong:
        raise Failed(
            f"The encoder in {info.folder} lacks {len(wrong)} of its weights, the first is {wrong[0]}; random numbers "
            "would have to stand in for them. Bring the whole model folder."
        )


FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(T5_TYPES, Family("FastT5", _t5_numbers, _load_t5)),
    **dict.fromkeys(BERT_TYPES, Family("AutoModel", _bert_numbers, _load_bert)),
}
"""By the ``model_type`` of ``config.json``."""
