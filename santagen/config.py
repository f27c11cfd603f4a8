"""Settings that are fixed for a run: the model's shape (from config.json) and the engine's limits.

Reads no weights and imports no torch. Unknown keys of config.json are ignored; what would change
the maths and is not supported is refused by name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from santagen.config_values import WRONG_FILE, end_ids, flag, fraction, shown, size, word, words
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
DEEPEST = 100  # values within values that a JSON file may hold
HEAD_TYPES = {"multiquery": True, "multihead": False}

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?[bB]?)\s*")


def parse_size(text: str | int) -> int:
    """A count with an optional suffix: 4k = 4,000, 32K = 32,768, 1M = 1,048,576 (K, M, G and T
    are powers of 1024)."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    if not match:
        raise SantagenError(
            f"{text!r} is not a size.", "Write a number, or one like 4k, 32K or 1M."
        )
    unit = match[2]
    factor = 1000 if unit == "k" else 1024 ** " KMGT".index(unit.upper() or " ")
    return int(float(match[1]) * factor)


@dataclass(frozen=True)
class ModelConfig:
    """The shape and the maths of one GPT-BigCode checkpoint; every size comes from config.json.

    `n_kv_head` is 1 with multi_query and n_head without. `raw` is the file as it was read.
    `eos_token_ids` are ids of the vocabulary; `notes` are remarks for the user.
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
    notes: tuple[str, ...] = field(default=(), repr=False, compare=False)

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
        config = cls.from_dict(raw, str(path))
        generation = directory / "generation_config.json"
        if not generation.is_file():
            return config
        generating = read_json(generation, "mend or remove it")
        ends, notes = end_ids(generating, str(generation), config.vocab_size)
        merged = tuple(dict.fromkeys([*config.eos_token_ids, *ends]))
        return replace(config, eos_token_ids=merged, notes=(*config.notes, *notes))

    @classmethod
    def from_dict(cls, raw: dict[str, Any], where: str = "config.json") -> ModelConfig:
        """Check a parsed config.json; `where` names it in errors."""
        _check_family(raw, where)
        count, truth = partial(size, raw, where), partial(flag, raw, where)
        n_embd, n_head = count("n_embd"), count("n_head")
        if n_embd % n_head:
            raise SantagenError(
                f"{where} has n_head {n_head}, which does not divide n_embd {n_embd}.", WRONG_FILE
            )
        if truth("scale_attn_by_inverse_layer_idx", False):
            raise SantagenError(
                f"{where} sets scale_attn_by_inverse_layer_idx, which no model of this family "
                f"uses.",
                "Check that config.json belongs to this checkpoint.",
            )
        vocab_size = count("vocab_size")
        eos_token_ids, notes = end_ids(raw, where, vocab_size)
        return cls(
            vocab_size=vocab_size,
            n_positions=count("n_positions"),
            n_embd=n_embd,
            n_head=n_head,
            n_layer=count("n_layer"),
            n_inner=count("n_inner", 4 * n_embd),
            activation=_activation(raw, where),
            layer_norm_epsilon=fraction(raw, where, "layer_norm_epsilon", 1e-5),
            multi_query=_multi_query(raw, where),
            scale_attn_weights=truth("scale_attn_weights", True),
            tie_word_embeddings=truth("tie_word_embeddings", True),
            eos_token_ids=eos_token_ids,
            torch_dtype=word(raw, where, "torch_dtype") or word(raw, where, "dtype"),
            model_type=str(raw.get("model_type")),
            architectures=words(raw, where, "architectures"),
            raw=raw,
            notes=notes,
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
    hint = f"{hint[:1].upper()}{hint[1:]}."
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
        _check_depth(value)
    except FileNotFoundError:
        if path.is_symlink():
            raise broken_link(path) from None
        raise SantagenError(f"{path} does not exist.", hint) from None
    except RecursionError:
        raise SantagenError(
            f"{path} can't be read as JSON: its values are nested too deep.", hint
        ) from None
    except (ValueError, OSError) as error:
        raise SantagenError(f"{path} can't be read as JSON: {error}.", hint) from None
    if not isinstance(value, dict):
        raise SantagenError(f"{path} does not hold a JSON object.", hint)
    return value


def broken_link(
    path: Path, hint: str = "Mend the link, or put the file itself in its place."
) -> SantagenError:
    """What to tell of a link to a file that is not there."""
    return SantagenError(f"{path} is a link to {path.readlink()}, which is not there.", hint)


def _check_depth(value: Any) -> None:
    """Raise RecursionError for what would end another's recursion later, when it is written."""
    level = [value] if isinstance(value, dict | list) else []
    depth = 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise RecursionError
        inner = (v.values() if isinstance(v, dict) else v for v in level)
        level = [item for part in inner for item in part if isinstance(item, dict | list)]


def _check_family(raw: dict[str, Any], where: str) -> None:
    """Refuse a model that is not of the GPT-BigCode family, and say which are."""
    model_type, architectures = word(raw, where, "model_type"), words(raw, where, "architectures")
    if model_type is None:
        known = any(name in ARCHITECTURES for name in architectures)
    else:
        known = model_type in MODEL_TYPES and (model_type != "gpt2" or _is_multi_query_gpt2(raw))
    if known:
        return
    from santagen import __version__

    raise SantagenError(
        f"{where} describes a {shown(model_type)} model "
        f"({', '.join(architectures) or 'no architecture named'}), "
        "which is not of the GPT-BigCode family.",
        f"santagen {__version__} runs model types {', '.join(MODEL_TYPES)} with architectures "
        f"{', '.join(ARCHITECTURES)} (gpt2 only in SantaCoder's multi-query form).",
    )


def _activation(raw: dict[str, Any], where: str) -> str:
    name = word(raw, where, "activation_function")
    if name is None:
        return "gelu_pytorch_tanh"
    if name not in ACTIVATIONS:
        raise SantagenError(
            f"{where} has activation_function {shown(name)}, which santagen does not know.",
            f"Known ones are {', '.join(ACTIVATIONS)}.",
        )
    return name


def _multi_query(raw: dict[str, Any], where: str) -> bool:
    """Current files say multi_query, the first SantaCoder ones attention_head_type; the default is
    the family's."""
    kind = word(raw, where, "attention_head_type")
    if kind is not None and kind not in HEAD_TYPES:
        raise SantagenError(
            f"{where} has attention_head_type {shown(kind)}, which santagen does not know.",
            f"Known ones are {', '.join(HEAD_TYPES)}.",
        )
    return flag(raw, where, "multi_query", HEAD_TYPES[kind or "multiquery"])


def _is_multi_query_gpt2(raw: dict[str, Any]) -> bool:
    return (
        raw.get("attention_head_type") == "multiquery"
        or raw.get("multi_query") is True
        or ("GPT2LMHeadCustomModel" in (raw.get("architectures") or ()))
    )
