"""Our parameter names and those of the authors' released checkpoints, both ways.

The two decode matrices lie there as (in, out) kernels and are transposed; all other tensors are the same bytes.
Their rotary tables are buffers that we compute; they tell the trained length.
"""

from collections.abc import Mapping

from torch import Tensor

from elf.stages.model.config import ModelConfig

_PREFIXES = ("module.", "_orig_mod.")
_ROTARY = "feat_rope.freqs_"
_KERNELS = {"proj_kernel", "unembed_kernel"}
_TELLING = {
    "unembed_kernel": 2,
    "t_emb_tokens": 3,
    "text_proj.proj2.weight": 2,
    "blocks.0.attn.q_norm.weight": 1,
    "text_proj.proj1.weight": 2,
    "self_cond_cfg_tokens": 3,
    "mode_tokens": 3,
    _ROTARY + "cos": 2,
}
"""Tensors that tell the model's shape, by their number of axes; every ELF of the authors has the first four."""
_ALWAYS = 4

_WHOLE = {
    "t_emb_tokens": "trunk.time_tokens",
    "self_cond_cfg_tokens": "trunk.guidance_tokens",
    "mode_tokens": "trunk.mode_tokens",
    "proj_kernel": "decode_projection.weight",
    "proj_bias": "decode_projection.bias",
    "unembed_kernel": "decode_vocabulary.weight",
    "unembed_bias": "decode_vocabulary.bias",
}
_MODULES = {
    "self_cond_proj": "trunk.self_condition",
    "text_proj.proj1": "trunk.input_down",
    "text_proj.proj2": "trunk.input_up",
    "t_embedder.mlp_0": "trunk.time_embedder.first",
    "t_embedder.mlp_2": "trunk.time_embedder.second",
    "self_cond_cfg_embedder.mlp_0": "trunk.guidance_embedder.first",
    "self_cond_cfg_embedder.mlp_2": "trunk.guidance_embedder.second",
    "final_layer.norm_final": "flow_norm",
    "final_layer.linear": "flow_head",
}
_BLOCK_MODULES = {
    "norm1": "attention_norm",
    "attn.qkv": "attention.qkv",
    "attn.q_norm": "attention.query_norm",
    "attn.k_norm": "attention.key_norm",
    "attn.proj": "attention.out",
    "norm2": "feed_norm",
    "mlp.w12": "feed.gate_value",
    "mlp.w3": "feed.out",
}
_OUR_WHOLE = {ours: theirs for theirs, ours in _WHOLE.items()}
_OUR_MODULES = {ours: theirs for theirs, ours in _MODULES.items()}
_OUR_BLOCK_MODULES = {ours: theirs for theirs, ours in _BLOCK_MODULES.items()}


def bare(name: str) -> str:
    """A name without what DDP and torch.compile put in front, in any order and number."""
    while name.startswith(_PREFIXES):
        name = name.removeprefix("module.").removeprefix("_orig_mod.")
    return name


def our_name(theirs: str) -> str:
    """The authors' name in ours; ValueError for a name that is not theirs."""
    return _translate(bare(theirs), _WHOLE, _MODULES, _BLOCK_MODULES, "blocks.", "trunk.blocks.")


def their_name(ours: str) -> str:
    """Our name in theirs; ValueError where their program has no such parameter (adaLN, a separate decoder)."""
    return _translate(ours, _OUR_WHOLE, _OUR_MODULES, _OUR_BLOCK_MODULES, "trunk.blocks.", "blocks.")


def from_authors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's parameters under our names, kernels as (out, in). Strict: an unknown name is refused."""
    translated: dict[str, Tensor] = {}
    for theirs, tensor in tensors.items():
        name = bare(theirs)
        if name.startswith(_ROTARY):
            continue
        ours = our_name(name)
        if ours in translated:
            raise ValueError(
                f"the checkpoint holds {ours} twice, the second time as {theirs}; keep one of them"
            )
        translated[ours] = tensor.mT.contiguous() if name in _KERNELS else tensor
    return translated


def to_authors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters under the authors' names, the decode kernels as (in, out)."""
    translated: dict[str, Tensor] = {}
    for ours, tensor in tensors.items():
        theirs = their_name(ours)
        translated[theirs] = tensor.mT.contiguous() if theirs in _KERNELS else tensor
    return translated


def config_from_authors(tensors: Mapping[str, Tensor], *, length: int | None = None) -> ModelConfig:
    """The model's shape, read from the tensors. `length` is needed where the checkpoint holds no rotary tables."""
    found = {bare(name): tensor for name, tensor in tensors.items()}
    missing = [name for name in list(_TELLING)[:_ALWAYS] if name not in found]
    if missing:
        raise ValueError(
            f"no tensor {missing[0]} in the checkpoint; an ELF checkpoint of the authors has one"
        )
    for name, axes in _TELLING.items():
        if name in found and (found[name].dim() != axes or not found[name].numel()):
            raise ValueError(
                f"tensor {name} has the shape {tuple(found[name].shape)}; in an ELF checkpoint it has {axes} axes, "
                "none of them empty"
            )

    def tokens(name: str) -> int:
        return found[name].shape[1] if name in found else 0

    width, vocabulary = found["unembed_kernel"].shape
    hidden = found["t_emb_tokens"].shape[2]
    blocks = {name.split(".")[1] for name in found if name.startswith("blocks.")}
    down = found.get("text_proj.proj1.weight")
    counts = [tokens(name) for name in ("t_emb_tokens", "self_cond_cfg_tokens", "mode_tokens")]
    tables = found.get(_ROTARY + "cos")
    if tables is not None:
        length = tables.shape[0] - sum(counts)
    if length is None:
        raise ValueError("the checkpoint holds no rotary tables to tell the trained length; give the length")
    return ModelConfig(
        width=width,
        vocabulary=vocabulary,
        length=length,
        hidden=hidden,
        depth=len(blocks),
        heads=hidden // found["blocks.0.attn.q_norm.weight"].shape[0],
        bottleneck=down.shape[0] if down is not None else None,
        time_tokens=counts[0],
        guidance_tokens=counts[1],
        mode_tokens=counts[2],
    )


def _translate(
    name: str,
    whole: Mapping[str, str],
    modules: Mapping[str, str],
    block_modules: Mapping[str, str],
    blocks: str,
    new_blocks: str,
) -> str:
    if name in whole:
        return whole[name]
    module, _, kind = name.rpartition(".")
    if kind in ("weight", "bias"):
        if module in modules:
            return f"{modules[module]}.{kind}"
        if module.startswith(blocks):
            index, _, inner = module.removeprefix(blocks).partition(".")
            if inner in block_modules and index.isdigit():
                return f"{new_blocks}{index}.{block_modules[inner]}.{kind}"
    raise ValueError(
        f"no parameter is called {name} in the other naming; check that the checkpoint is an ELF"
    )
