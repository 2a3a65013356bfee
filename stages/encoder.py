"""A frozen encoder from a Hugging Face folder: token ids in, raw hidden states out, nothing pooled or normalised.

T5 and mT5 give their encoder stack (``elf.stages.fast_t5``); BERT and its kin come through ``AutoModel``. Layers
above the one that is read are not even loaded. Hidden layer 0 is the embeddings. For T5 a layer below the last is
the residual stream, the last one (or None) comes after the final norm, as in transformers' ``hidden_states``.
Shapes: B batch, L positions, D width; masks are (B, L or 1, L), query × key, True = sees.
"""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import xxhash
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, T5EncoderModel
from transformers.utils import logging

from elf.cache.files import digest_file
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.fast_t5 import FastT5
from elf.stages.model.masks import additive

Hidden: TypeAlias = Callable[[Tensor, Tensor | None], Iterator[Tensor]]

COMPUTE: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
T5_TYPES = ("t5", "mt5")
BERT_TYPES = ("bert", "distilbert", "electra", "roberta", "xlm-roberta")
_OFFSET_TYPES = ("roberta", "xlm-roberta")
"""Their position table begins with two rows that no token uses."""


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """What is known of an encoder without loading its weights.

    ``layer`` is the hidden layer that is read, of ``layers``; ``longest`` the most positions it takes (None: any);
    ``weights_dtype`` what the weights are stored as; ``digest`` that of weights and configuration.
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
    weights_dtype: str
    digest: str


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
                    f"{self.info.vocabulary:,} ids. The tokens were made with a tokenizer of another encoder."
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
    config = _read_config(folder)
    model_type, layers = str(config.model_type), int(config.num_hidden_layers)
    if layer is not None and not 0 <= layer <= layers:
        raise Misconfigured(
            f"encode.layer is {layer}, but the {model_type} encoder in {folder} has hidden layers 0 to {layers}."
        )
    longest = None if model_type in T5_TYPES else int(config.max_position_embeddings)
    return EncoderInfo(
        folder=folder,
        kind="FastT5" if model_type in T5_TYPES else f"AutoModel/{model_type}",
        model_type=model_type,
        width=int(config.hidden_size),
        layers=layers,
        layer=layers if layer is None else layer,
        vocabulary=int(config.vocab_size),
        longest=longest - 2 if longest is not None and model_type in _OFFSET_TYPES else longest,
        compute=compute,
        weights_dtype=_stored_dtype(folder),
        digest=digest_encoder(folder),
    )


def load_encoder(info: EncoderInfo, device: str = "cpu") -> Encoder:
    """The encoder on ``device``, in evaluation mode and its compute dtype.

    Raises Failed where weights that are needed are missing from the folder or have another shape.
    """
    config = _read_config(info.folder)
    target, dtype = torch.device(device), COMPUTE[info.compute]
    if info.model_type in T5_TYPES:
        model = _load(T5EncoderModel, info.folder, config)
        fast = FastT5(model.encoder, info.layer).to(target, dtype).eval()
        return Encoder(info, fast.hidden, target)
    config.num_hidden_layers = info.layer
    network = _load(AutoModel, info.folder, config).to(target, dtype).eval()

    def hidden(ids_BL: Tensor, mask_B1QK: Tensor | None) -> Iterator[Tensor]:
        output = network(input_ids=ids_BL, attention_mask=_square(mask_B1QK), output_hidden_states=True)
        yield from output.hidden_states[:-1]
        yield output.last_hidden_state

    return Encoder(info, hidden, target)


def digest_encoder(folder: Path) -> str:
    """``xxh3:…`` over the configuration and every weight file, by name."""
    state = xxhash.xxh3_128()
    for path in [folder / "config.json", *_weight_files(folder)]:
        state.update(f"{path.name}\n{digest_file(path)}\n".encode())
    return f"xxh3:{state.hexdigest()}"


def _square(mask_B1QK: Tensor | None) -> Tensor | None:
    """The mask with a row for every query: transformers takes (B, 1, L, L) only."""
    if mask_B1QK is None:
        return None
    return mask_B1QK.expand(-1, -1, mask_B1QK.shape[-1], -1)


def _read_config(folder: Path) -> PreTrainedConfig:
    if not (folder / "config.json").is_file():
        raise Failed(f"{folder} holds no config.json, so there is no encoder in it.")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise Failed(
            f"{folder / 'config.json'} does not describe a model that this transformers knows: {error}."
        ) from error
    if config.model_type not in T5_TYPES + BERT_TYPES:
        known = ", ".join(T5_TYPES + BERT_TYPES)
        raise Failed(
            f"The model in {folder} is of type {config.model_type}; as frozen encoder these are known: {known}."
        )
    return config


def _load(kind: Any, folder: Path, config: PreTrainedConfig) -> Any:
    """The model without dropout or pooler, every weight from the folder, computed by torch's fused attention."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model, report = kind.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise Failed(f"The encoder in {folder} cannot be loaded: {error}.") from error
    finally:
        logging.set_verbosity(verbosity)
    wrong = sorted(
        [name for name in report["missing_keys"] if not name.startswith("pooler.")]
        + [str(each) for each in report["mismatched_keys"]]
    )
    if wrong:
        raise Failed(
            f"The encoder in {folder} lacks {len(wrong)} of its weights, the first is {wrong[0]}; random numbers "
            "would stand in for them. Bring the whole model folder."
        )
    if isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = None
    return model.requires_grad_(requires_grad=False)


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise Failed(
            f"{folder} holds no *.safetensors file. Weights in pickles (*.bin) can run code when they are read and "
            "are not taken; convert them with save_pretrained once."
        )
    return files


def _stored_dtype(folder: Path) -> str:
    """The dtype that most weights are stored as, from the headers of the weight files."""
    counts: dict[str, int] = {}
    for path in _weight_files(folder):
        try:
            with path.open("rb") as stream:
                header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
        except (struct.error, ValueError) as error:
            raise Failed(f"{path} is no safetensors file: {error}.") from error
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] in _DTYPES:
                begin, end = entry["data_offsets"]
                counts[entry["dtype"]] = counts.get(entry["dtype"], 0) + end - begin
    if not counts:
        raise Failed(f"The weight files in {folder} hold no floating-point tensor.")
    return _DTYPES[max(sorted(counts), key=counts.__getitem__)]


_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
