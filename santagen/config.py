"""Settings that are fixed for a run: the model's shape (from config.json) and the engine's limits.

Reads no weights and imports no torch. Unknown keys of config.json are ignored; what would change
the maths and is not supported is refused by name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from santagen.errors import SantagenError

MODEL_TYPES = ("gpt_bigcode", "gpt2")  # gpt2 is how the first SantaCoder files label themselves
ARCHITECTURES = (
    "GPTBigCodeForCausalLM",
    "GPTBigCodeLMHeadModel",
    "GPT2LMHeadCustomModel",
    "GPT2LMHeadModel",
)
TANH_GELUS = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")
ACTIVATIONS = ("gelu", *TANH_GELUS, "relu", "silu")
WRONG_FILE = "Take config.json from the same place as the weights."

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?)(i?[bB]?)\s*")


def parse_size(text: str | int) -> int:
    """A count with an optional suffix: 4k = 4,000, 32K = 32,768, 1M = 1,048,576 (K, M, G are
    powers of 1024)."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    if not match:
        raise SantagenError(
            f"{text!r} is not a size.", "Write a number, or one like 4k, 32K or 1M."
        )
    factor = {"": 1, "k": 1000, "K": 1024, "m": 1024**2, "M": 1024**2, "g": 1024**3, "G": 1024**3}
    return int(float(match[1]) * factor[match[2]])


@dataclass(frozen=True)
class ModelConfig:
    """The shape and the maths of one GPT-BigCode checkpoint; every size comes from config.json.

    `n_kv_head` is 1 with multi_query and n_head without. `raw` is the file as it was read.
    """

    vocab_size: int
    n_positions: int
    n_embd: int
    n_head: int
    n_layer: int
    n_inner: int
    activation: str = "gelu_pytorch_tanh"
    layer_norm_epsilon: float = 1e-5
    multi_query: bool = True
    scale_attn_weights: bool = True
    tie_word_embeddings: bool = True
    eos_token_ids: tuple[int, ...] = ()
    torch_dtype: str | None = None
    model_type: str = "gpt_bigcode"
    architectures: tuple[str, ...] = ()
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def n_kv_head(self) -> int:
        return 1 if self.multi_query else self.n_head

    @property
    def attention_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale_attn_weights else 1.0

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes of key and value cache that one token takes over all layers."""
        return 2 * self.n_layer * self.n_kv_head * self.head_dim * bytes_per_value

    @classmethod
    def from_directory(cls, directory: Path) -> ModelConfig:
        """Read config.json (and the end token of generation_config.json) of a model directory."""
        path = directory / "config.json"
        raw = read_json(
            path, "a model directory holds config.json, the weights and the tokenizer files"
        )
        generation = directory / "generation_config.json"
        if generation.is_file():
            eos = read_json(generation, "mend or remove it").get("eos_token_id")
            if eos is not None:
                raw = {**raw, "eos_token_id": _merge_eos(raw.get("eos_token_id"), eos)}
        return cls.from_dict(raw, str(path))

    @classmethod
    def from_dict(cls, raw: dict[str, Any], where: str = "config.json") -> ModelConfig:
        """Check a parsed config.json; `where` names it in errors."""
        _check_family(raw, where)
        size = partial(_size, raw, where)
        n_embd, n_head = size("n_embd"), size("n_head")
        if n_embd % n_head:
            raise SantagenError(
                f"{where} has n_head {n_head}, which does not divide n_embd {n_embd}.", WRONG_FILE
            )
        activation = _activation(raw, where)
        if raw.get("scale_attn_by_inverse_layer_idx"):
            raise SantagenError(
                f"{where} sets scale_attn_by_inverse_layer_idx, which no model of this family "
                f"uses.",
                "Check that config.json belongs to this checkpoint.",
            )
        return cls(
            vocab_size=size("vocab_size"),
            n_positions=size("n_positions"),
            n_embd=n_embd,
            n_head=n_head,
            n_layer=size("n_layer"),
            n_inner=size("n_inner", 4 * n_embd),
            activation=activation,
            layer_norm_epsilon=float(raw.get("layer_norm_epsilon", 1e-5)),
            multi_query=_multi_query(raw),
            scale_attn_weights=bool(raw.get("scale_attn_weights", True)),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", True)),
            eos_token_ids=_eos_tuple(raw.get("eos_token_id")),
            torch_dtype=raw.get("torch_dtype") or raw.get("dtype"),
            model_type=str(raw.get("model_type")),
            architectures=_architectures(raw),
            raw=raw,
        )


@dataclass(frozen=True)
class EngineConfig:
    """What the user may set about a run's engine; None means "choose from the machine and the
    model"."""

    model: str | None = None
    revision: str | None = None
    hf_token: str | None = field(default=None, repr=False)
    tokenizer: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    quantization: str = "auto"
    attention: str = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    block_size: int | None = None
    enforce_eager: bool = False
    invariant: bool = False
    num_blocks: int | None = None  # tests force a small cache with it


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """Parse a JSON object from `path`, or raise a SantagenError that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise SantagenError(f"{path} does not exist.", f"{hint[:1].upper()}{hint[1:]}.") from None
    except (ValueError, OSError) as error:
        raise SantagenError(
            f"{path} can't be read as JSON: {error}.", f"{hint[:1].upper()}{hint[1:]}."
        ) from None
    if not isinstance(value, dict):
        raise SantagenError(
            f"{path} does not hold a JSON object.", f"{hint[:1].upper()}{hint[1:]}."
        )
    return value


def _check_family(raw: dict[str, Any], where: str) -> None:
    """Refuse a model that is not of the GPT-BigCode family, and say which are."""
    model_type, architectures = raw.get("model_type"), _architectures(raw)
    if model_type is None:
        known = any(name in ARCHITECTURES for name in architectures)
    else:
        known = model_type in MODEL_TYPES and (model_type != "gpt2" or _is_multi_query_gpt2(raw))
    if known:
        return
    from santagen import __version__

    raise SantagenError(
        f"{where} describes a {model_type!r} model "
        f"({', '.join(architectures) or 'no architecture named'}), "
        "which is not of the GPT-BigCode family.",
        f"santagen {__version__} runs model types {', '.join(MODEL_TYPES)} with architectures "
        f"{', '.join(ARCHITECTURES)} (gpt2 only in SantaCoder's multi-query form).",
    )


def _architectures(raw: dict[str, Any]) -> tuple[str, ...]:
    return tuple(raw.get("architectures") or ())


def _size(raw: dict[str, Any], where: str, name: str, default: int | None = None) -> int:
    """The whole number above 0 that config.json has under `name`; null counts as left out."""
    value = raw.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SantagenError(
            f"{where} has {name} = {value!r}, which must be a whole number above 0.", WRONG_FILE
        )
    return value


def _activation(raw: dict[str, Any], where: str) -> str:
    name = raw.get("activation_function", "gelu_pytorch_tanh")
    if name not in ACTIVATIONS:
        raise SantagenError(
            f"{where} has activation_function {name!r}, which santagen does not know.",
            f"Known ones are {', '.join(ACTIVATIONS)}.",
        )
    return name


def _multi_query(raw: dict[str, Any]) -> bool:
    """Current files say multi_query, the first SantaCoder ones attention_head_type; the default is
    the family's."""
    said = raw.get("multi_query")
    if said is None:
        said = raw.get("attention_head_type", "multiquery") == "multiquery"
    return bool(said)


def _is_multi_query_gpt2(raw: dict[str, Any]) -> bool:
    return (
        raw.get("attention_head_type") == "multiquery"
        or raw.get("multi_query") is True
        or ("GPT2LMHeadCustomModel" in (raw.get("architectures") or ()))
    )


def _eos_tuple(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0)


def _merge_eos(first: Any, second: Any) -> list[int]:
    return list(dict.fromkeys([*_eos_tuple(first), *_eos_tuple(second)]))
