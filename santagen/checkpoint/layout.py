"""Which tensors a checkpoint must hold, in which orientation: one table, decided once per checkpoint.

                          Linear [out, in]     Conv1D [in, out]
    attn.c_attn           [E + 2KD, E]         [E, E + 2KD]        K = number of K/V heads
    attn.q_attn           [E, E]               [E, E]              (split form, beside kv_attn)
    attn.kv_attn          [2KD, E]             [E, 2KD]
    attn.c_proj           [E, E]               [E, E]
    mlp.c_fc              [I, E]               [E, I]
    mlp.c_proj            [E, I]               [I, E]

Square tensors fit both, so the first tensor that is not square decides for all of them, and the others must
agree. Looks at names and shapes only: nothing is read, nothing is put on a device before this passes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from santagen.checkpoint.reader import TensorFiles
from santagen.config import ModelConfig
from santagen.errors import SantagenError

FUSED = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
SPLIT = ("attn.q_attn", "attn.kv_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
BUFFERS = re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias|rotary_emb\.inv_freq)")
FLOATS = ("F16", "BF16", "F32", "F64")
QUANTISED_PARTS = ("qweight", "qzeros", "scales", "g_idx")
ROOT = "transformer."


@dataclass(frozen=True)
class Layout:
    """How this checkpoint spells what the model asks for; `why` is for people."""

    transposed: bool
    split: bool
    tied: bool
    bare: bool  # the file's names lack the leading "transformer."
    has_wte: bool
    quantised: bool
    why: str

    def stored(self, name: str) -> str:
        """The name in the file of a tensor that the model calls `name`."""
        if name == f"{ROOT}wte.weight" and not self.has_wte:
            return "lm_head.weight"
        return name.removeprefix(ROOT) if self.bare else name

    def describe(self) -> str:
        form = "Conv1D (transposed)" if self.transposed else "Linear"
        return f"{form}, {'split q/kv' if self.split else 'fused c_attn'}, {'tied' if self.tied else 'own'} head"


def linear_shape(config: ModelConfig, module: str) -> tuple[int, int]:
    """[out, in] of a module such as attn.c_attn."""
    embd, kv = config.n_embd, 2 * config.n_kv_head * config.head_dim
    return {
        "attn.c_attn": (embd + kv, embd),
        "attn.q_attn": (embd, embd),
        "attn.kv_attn": (kv, embd),
        "attn.c_proj": (embd, embd),
        "mlp.c_fc": (config.n_inner, embd),
        "mlp.c_proj": (embd, config.n_inner),
    }[module]


def decide_layout(files: TensorFiles, config: ModelConfig) -> Layout:
    """Choose the layout and check every tensor against it; the first fault is raised as a SantagenError."""
    names = set(files.names())
    bare = not any(name.startswith(ROOT) for name in names)
    root = "" if bare else ROOT
    split = f"{root}h.0.attn.kv_attn.weight" in names or f"{root}h.0.attn.kv_attn.qweight" in names
    quantised = any(name.endswith(".qweight") for name in names)
    transposed, why = (False, "GPTQ packs Linear weights") if quantised else _orientation(
        files, config, root, split
    )
    if not config.multi_query and (transposed or split):
        raise SantagenError(
            "The config says multi_query false with a Conv1D or split layout, where files differ in the order of c_attn.",
            "Convert it to the standard GPTBigCodeForCausalLM form with transformers.",
        )
    has_wte = f"{root}wte.weight" in names
    layout = Layout(transposed, split, config.tie_word_embeddings, bare, has_wte, quantised, why)
    wanted = _expected(config, layout, root, names)
    _check(files, config, layout, wanted)
    return layout


def _orientation(
    files: TensorFiles, config: ModelConfig, root: str, split: bool
) -> tuple[bool, str]:
    """(transposed, why): the first weight that is not square decides, all others must agree."""
    decided: tuple[bool, str] | None = None
    for layer in range(config.n_layer):
        for module in SPLIT if split else FUSED:
            name = f"{root}h.{layer}.{module}.weight"
            out, inp = linear_shape(config, module)
            if out == inp or name not in files:
                continue
            info = files.info(name)
            if info.shape not in ((out, inp), (inp, out)):
                raise _wrong_shape(files, name, f"[{out}, {inp}] or, as Conv1D, [{inp}, {out}]")
            turned = info.shape == (inp, out)
            if decided is None:
                form = "Conv1D" if turned else "Linear"
                decided = turned, f"{name} is {list(info.shape)}, which is {form} for n_embd {config.n_embd}"
            elif decided[0] != turned:
                raise SantagenError(
                    f"{name} in {info.file} is {list(info.shape)}, laid out as {'Conv1D' if turned else 'Linear'}, but "
                    f"{decided[1]}.",
                    "Layers of two layouts were mixed: take all weights from one export.",
                )
    if decided is not None:
        return decided
    turned = any(name.startswith("GPT2") for name in config.architectures)
    return turned, f"all weights are square; architectures {list(config.architectures)} decides"


def _expected(
    config: ModelConfig, layout: Layout, root: str, names: set[str]
) -> dict[str, tuple[int, ...] | None]:
    """File name -> shape of all that must be there; None where gptq.py checks the shape."""
    embd = config.n_embd
    wanted: dict[str, tuple[int, ...] | None] = {}
    embedding = layout.stored(f"{ROOT}wte.weight")
    if layout.tied and not layout.has_wte and "lm_head.weight" not in names:
        embedding = f"{ROOT}wte.weight"  # neither name is there: report the usual one
    elif not layout.tied:
        embedding = f"{root}wte.weight"
        wanted["lm_head.weight"] = (config.vocab_size, embd)
    wanted[embedding] = (config.vocab_size, embd)
    wanted[f"{root}wpe.weight"] = (config.n_positions, embd)
    for layer in range(config.n_layer):
        for norm in ("ln_1", "ln_2"):
            for part in ("weight", "bias"):
                wanted[f"{root}h.{layer}.{norm}.{part}"] = (embd,)
        for module in SPLIT if layout.split else FUSED:
            out, inp = linear_shape(config, module)
            base = f"{root}h.{layer}.{module}"
            wanted[f"{base}.bias"] = (out,)
            if layout.quantised:
                for part in ("qweight", "qzeros", "scales"):
                    wanted[f"{base}.{part}"] = None
            else:
                wanted[f"{base}.weight"] = (inp, out) if layout.transposed else (out, inp)
    for part in ("weight", "bias"):
        wanted[f"{root}ln_f.{part}"] = (embd,)
    return wanted


def _check(
    files: TensorFiles, config: ModelConfig, layout: Layout, wanted: dict[str, tuple[int, ...] | None]
) -> None:
    for name, shape in wanted.items():
        if name not in files:
            raise SantagenError(
                f"The checkpoint {files.directory.name} lacks the tensor {name}"
                + (f", which should be {list(shape)}." if shape else "."),
                "Download the weights again, or take config.json from the same place.",
            )
        if shape is not None and files.info(name).shape != shape:
            raise _wrong_shape(files, name, str(list(shape)))
        if shape is not None and files.info(name).dtype not in FLOATS:
            info = files.info(name)
            raise SantagenError(
                f"{name} in {info.file} is of dtype {info.dtype}, which is no weight santagen reads.",
                "Use float32, float16, bfloat16 or GPTQ weights.",
            )
    spare = {"lm_head.weight"} if layout.tied else set()
    if layout.quantised:
        spare |= {name.removesuffix("qweight") + "g_idx" for name in wanted if name.endswith("qweight")}
        spare |= {"gptq_bits", "gptq_groupsize"}
    for name in files.names():
        if name in wanted or name in spare or BUFFERS.fullmatch(name):
            continue
        raise SantagenError(
            f"{files.info(name).file} holds the tensor {name}, which a {config.n_layer}-layer GPT-BigCode model "
            f"({layout.describe()}) does not have.",
            "config.json does not belong to these weights, or they are of another model.",
        )
    if "lm_head.weight" in files and layout.tied and "lm_head.weight" not in wanted:
        shape = (config.vocab_size, config.n_embd)
        if files.info("lm_head.weight").shape != shape:
            raise _wrong_shape(files, "lm_head.weight", str(list(shape)))


def _wrong_shape(files: TensorFiles, name: str, expected: str) -> SantagenError:
    info = files.info(name)
    return SantagenError(
        f"{name} in {info.file} has shape {list(info.shape)}; config.json asks for {expected}.",
        "Take config.json and the weights from the same place.",
    )
