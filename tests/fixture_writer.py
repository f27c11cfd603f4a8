"""Writes small GPT-BigCode checkpoints in every layout, with numpy and the standard library alone.

Independent of the package on purpose: its own safetensors bytes, its own GPTQ packing (bit by bit),
its own tables of names. `write_checkpoint` returns the weights that a right loader must come to:
float32 by their standard names, Linear [out, in], c_attn as rows Q, then K, then V.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
Arrays = dict[str, Array]
TINY: dict[str, Any] = {
    "model_type": "gpt_bigcode",
    "architectures": ["GPTBigCodeForCausalLM"],
    "vocab_size": 96,
    "n_positions": 64,
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 2,
    "n_inner": 160,
    "activation_function": "gelu_pytorch_tanh",
    "layer_norm_epsilon": 1e-5,
    "multi_query": True,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}
MODULES = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


@dataclass(frozen=True)
class GPTQSpec:
    """How to quantise; `form` is v1, v1-word or v2 and says how zero points are stored."""

    bits: int = 4
    group_size: int = 32
    act_order: bool = False
    sym: bool = True
    form: str = "v1"
    g_idx: str = "stored"  # or "zero", "absent"
    zero_points: tuple[int, ...] = ()  # asymmetric ones to draw from; () means all of them
    scales_dtype: str = "F16"


@dataclass(frozen=True)
class Spec:
    """One checkpoint to write; `config` overrides TINY, `head` says what is stored of the tie."""

    config: dict[str, Any] = field(default_factory=dict)
    conv1d: bool = False
    split: bool = False
    dtype: str = "BF16"
    shards: int = 1
    head: str = "wte"  # or "lm_head", "both"
    prefix: str = "transformer."
    gptq: GPTQSpec | None = None
    file: str = "model.safetensors"
    extra: dict[str, Array] = field(default_factory=dict)
    seed: int = 0


def write_checkpoint(directory: Path, spec: Spec) -> Arrays:
    """Write config.json and the weights of `spec`; returns the standard weights, float32."""
    config = {**TINY, **spec.config}
    rng = np.random.default_rng(spec.seed)
    standard = {k: rounded(v, spec.dtype) for k, v in random_weights(config, rng).items()}
    stored: dict[str, tuple[str, Array]] = {}
    for name, value in _stored_layout(standard, config, spec).items():
        if spec.gptq is not None and value.ndim == 2 and ".h." in name:
            base = name.removesuffix(".weight")
            packed, weight = quantise(value, spec.gptq, rng)
            stored |= {f"{base}.{part}": item for part, item in packed.items()}
            _put_back(standard, base, weight, config)
        else:
            stored[name] = (spec.dtype, value)
    stored = {re.sub(r"^transformer\.", spec.prefix, name): v for name, v in stored.items()}
    stored |= {name: ("F32", value) for name, value in spec.extra.items()}
    if spec.gptq is not None:
        config["quantization_config"] = gptq_settings(spec.gptq)
    (directory / "config.json").write_text(json.dumps(config))
    _write_files(directory, stored, spec)
    if config["tie_word_embeddings"]:
        standard.pop("lm_head.weight")
    return standard


def random_weights(config: dict[str, Any], rng: np.random.Generator) -> Arrays:
    """Standard weights, with biases and norms far enough from 0 and 1 that losing one shows."""
    embd, heads, inner = (
        config["n_embd"],
        config["n_head"],
        config["n_inner"] or 4 * config["n_embd"],
    )
    kv = 2 * embd // heads if config["multi_query"] else 2 * embd
    shapes = {
        "attn.c_attn": (embd + kv, embd), "attn.c_proj": (embd, embd),
        "mlp.c_fc": (inner, embd), "mlp.c_proj": (embd, inner),
    }  # fmt: skip

    def draw(*shape: int, scale: float) -> Array:
        return rng.normal(0, scale, shape).astype(np.float32)

    wte = draw(config["vocab_size"], embd, scale=1.0)
    tied = config["tie_word_embeddings"]
    weights = {
        "transformer.wte.weight": wte,
        "lm_head.weight": wte if tied else draw(config["vocab_size"], embd, scale=1.0),
        "transformer.wpe.weight": draw(config["n_positions"], embd, scale=0.5),
    }
    norms = ["transformer.ln_f"]
    for layer in range(config["n_layer"]):
        base = f"transformer.h.{layer}"
        norms += [f"{base}.ln_1", f"{base}.ln_2"]
        for module, (out, inp) in shapes.items():
            weights[f"{base}.{module}.weight"] = draw(out, inp, scale=inp**-0.5)
            weights[f"{base}.{module}.bias"] = draw(out, scale=0.3)
    for norm in norms:
        weights[f"{norm}.weight"] = 1 + draw(embd, scale=0.2)
        weights[f"{norm}.bias"] = draw(embd, scale=0.2)
    return weights


def _stored_layout(standard: Arrays, config: dict[str, Any], spec: Spec) -> Arrays:
    """The tensors as the layout stores them, unquantised."""
    embd, heads = config["n_embd"], config["n_head"]
    stored: Arrays = {}
    for name, value in standard.items():
        if ".attn.c_attn." in name and not config["multi_query"]:
            # [3, heads, size, ...] -> [heads, 3, size, ...]
            value = value.reshape(3, heads, embd // heads, *value.shape[1:])
            value = value.swapaxes(0, 1).reshape(3 * embd, *value.shape[3:])
        if ".attn.c_attn." in name and spec.split:
            stored[name.replace("c_attn", "q_attn")] = value[:embd]
            stored[name.replace("c_attn", "kv_attn")] = value[embd:]
        else:
            stored[name] = value
    if spec.conv1d:
        stored = {k: v.T if v.ndim == 2 and ".h." in k else v for k, v in stored.items()}
    if spec.head == "wte" and config["tie_word_embeddings"]:
        stored.pop("lm_head.weight")
    if spec.head == "lm_head":
        stored.pop("transformer.wte.weight")
    return stored


def _put_back(standard: Arrays, base: str, weight: Array, config: dict[str, Any]) -> None:
    """The dequantised weight of a stored layer, into its rows of the standard one."""
    embd, heads = config["n_embd"], config["n_head"]
    head, _, leaf = base.rpartition(".")
    fused = f"{head}.c_attn.weight"
    if leaf == "q_attn":
        standard[fused][:embd] = weight
    elif leaf == "kv_attn":
        standard[fused][embd:] = weight
    elif leaf == "c_attn" and not config["multi_query"]:
        split = weight.reshape(heads, 3, embd // heads, -1).swapaxes(0, 1)
        standard[fused] = split.reshape(3 * embd, -1)
    else:
        standard[f"{base}.weight"] = weight


def gptq_settings(spec: GPTQSpec) -> dict[str, Any]:
    """quantization_config as the tools write it."""
    return {
        "quant_method": "gptq", "bits": spec.bits, "group_size": spec.group_size,
        "desc_act": spec.act_order, "sym": spec.sym,
        "checkpoint_format": "gptq_v2" if spec.form == "v2" else "gptq",
        "meta": {"quantizer": ["gptqmodel:7.6.0" if spec.form == "v1-word" else "other:1"]},
    }  # fmt: skip


def quantise(
    weight: Array, spec: GPTQSpec, rng: np.random.Generator
) -> tuple[dict[str, tuple[str, Array]], Array]:
    """Random integers of a [N, K] layer's size, packed, and the float32 weight they stand for.

    Exactness is what is tested, so the integers are drawn at random, not fitted to `weight`.
    """
    outputs, inputs = weight.shape
    group = inputs if spec.group_size == -1 else spec.group_size
    groups = -(-inputs // group)
    top = 2**spec.bits
    g_idx = np.arange(inputs) // group
    if spec.act_order:
        g_idx = g_idx[rng.permutation(inputs)]
    codes = rng.integers(0, top, (inputs, outputs))
    pool = np.array(spec.zero_points or range(top))
    zeros = (
        np.full((groups, outputs), top // 2) if spec.sym else rng.choice(pool, (groups, outputs))
    )
    scales = rng.uniform(0.5, 1.5, (groups, outputs)).astype(np.float32)
    scales = rounded(scales / (top * np.sqrt(inputs)), spec.scales_dtype)
    packed = {
        "qweight": ("I32", pack(codes.T, spec.bits).T),
        "qzeros": ("I32", pack_zeros(zeros, spec.bits, spec.form)),
        "scales": (spec.scales_dtype, scales),
    }
    if spec.g_idx != "absent":
        packed["g_idx"] = ("I32", g_idx * (spec.g_idx == "stored"))
    dequantised = (codes - zeros[g_idx]).astype(np.float32) * scales[g_idx]
    return packed, dequantised.T.copy()


def pack(values: Array, bits: int) -> Array:
    """[n, m] integers -> int32 [n, m * bits / 32]: each row one little-endian stream of bits."""
    as_bits = (values[..., None] >> np.arange(bits)) & 1  # [n, m, bits], lowest first
    stream = as_bits.reshape(values.shape[0], -1, 32).astype(np.uint8)
    return np.packbits(stream, axis=-1, bitorder="little").view("<i4").reshape(values.shape[0], -1)


def pack_zeros(zeros: Array, bits: int, form: str) -> Array:
    """Zero points as the format stores them."""
    if form == "v2":
        return pack(zeros, bits)
    if form == "v1":
        return pack((zeros - 1) % 2**bits, bits)
    ones = pack(np.ones_like(zeros), bits).view(np.uint32)  # v1-word: borrows run through the word
    return (pack(zeros, bits).view(np.uint32) - ones).view(np.int32)


def rounded(values: Array, dtype: str) -> Array:
    """float32 values that `dtype` holds exactly (to nearest, ties to even)."""
    if dtype == "F16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return bits.view(np.float32)
    return values.astype(np.float32)


def raw_bytes(dtype: str, values: Array) -> bytes:
    if dtype == "BF16":
        return (np.ascontiguousarray(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    kinds = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "u1"}
    return np.ascontiguousarray(values, kinds[dtype]).tobytes()


def write_safetensors(path: Path, tensors: dict[str, tuple[str, Array]]) -> None:
    """A safetensors file: header length, header, data in the header's order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, values) in tensors.items():
        raw = raw_bytes(dtype, values)
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _write_files(directory: Path, stored: dict[str, tuple[str, Array]], spec: Spec) -> None:
    if spec.file.endswith(".bin"):
        write_bin(directory / spec.file, stored)
    elif spec.shards == 1:
        write_safetensors(directory / spec.file, stored)
    else:
        names = list(stored)
        weight_map = {}
        for i in range(spec.shards):
            shard = f"model-{i + 1:05}-of-{spec.shards:05}.safetensors"
            part = {name: stored[name] for name in names[i :: spec.shards]}
            write_safetensors(directory / shard, part)
            weight_map |= dict.fromkeys(part, shard)
        index = {"metadata": {}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def write_bin(path: Path, stored: dict[str, tuple[str, Array]], **options: Any) -> None:
    """A pickled file, the one kind that needs torch to write."""
    import torch

    kinds = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I32": torch.int32}
    tensors = {
        name: torch.tensor(np.ascontiguousarray(value)).to(kinds[dtype])
        for name, (dtype, value) in stored.items()
    }
    torch.save(tensors, path, **options)


def read_safetensors(path: Path) -> dict[str, tuple[str, Array]]:
    """What `write_safetensors` wrote, to change and write again (BF16 comes back as float32)."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        start, stop = (8 + length + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            values = np.frombuffer(raw[start:stop], "<u2").astype(np.uint32) << 16
            values = values.view(np.float32)
        else:
            kinds = {"F16": "<f2", "F32": "<f4", "I32": "<i4"}
            values = np.frombuffer(raw[start:stop], kinds[entry["dtype"]])
        tensors[name] = (entry["dtype"], values.reshape(entry["shape"]))
    return tensors
