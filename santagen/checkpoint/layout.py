"""Which tensors a checkpoint must hold, and how they lie: one table, decided once per checkpoint.

                          Linear [out, in]     Conv1D [in, out]
    attn.c_attn           [E + 2KD, E]         [E, E + 2KD]        K = number of K/V heads
    attn.q_attn           [E, E]               [E, E]              (split form, beside kv_attn)
    attn.kv_attn          [2KD, E]             [E, 2KD]
    attn.c_proj           [E, E]               [E, E]
    mlp.c_fc              [I, E]               [E, I]
    mlp.c_proj            [E, I]               [I, E]

Square tensors fit both, so the first tensor that is not square decides for all of them, and the
others must agree. Looks at names, shapes and dtypes only: nothing is read, and torch is not needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from santagen.checkpoint.reader import TensorFiles
from santagen.config import ModelConfig
from santagen.errors import SantagenError

FUSED = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
SPLIT = ("attn.q_attn", "attn.kv_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
# Masks and rotary tables that older exports saved beside the weights.
BUFFERS = re.compile(
    r"(transformer\.)?(h\.\d+\.attn\.(bias|masked_bias)|(h\.\d+\.attn\.)?rotary_emb\.\w+)"
)
FLOATS = ("F16", "BF16", "F32", "F64")
GPTQ_PARTS = ("qweight", "qzeros", "scales")
GPTQ_SCALARS = ("gptq_bits", "gptq_groupsize")
ROOT = "transformer."
HEAD = "lm_head.weight"
FROM_ONE_PLACE = "Take config.json and the weights from the same place."


@dataclass(frozen=True)
class Layout:
    """How this checkpoint spells what the model asks for; `why` says what the orientation was told
    by.

    `transposed`: weights are [in, out] (Conv1D). `split`: q_attn and kv_attn in place of c_attn.
    `tied`: the head is the embedding. `bare`: the names lack the leading "transformer.". `note` is
    a remark for the user.
    """

    transposed: bool
    split: bool
    tied: bool
    bare: bool
    has_wte: bool
    has_head: bool
    quantised: bool
    why: str
    note: str = ""

    def stored(self, name: str) -> str:
        """The name in the file of a tensor that the model calls `name`."""
        if name == f"{ROOT}wte.weight" and not self.has_wte and self.tied and self.has_head:
            return HEAD
        return name.removeprefix(ROOT) if self.bare else name

    @property
    def modules(self) -> tuple[str, ...]:
        return SPLIT if self.split else FUSED

    @property
    def head_weight_name(self) -> str:
        """The name (as the model says it) of the output product's weight."""
        return f"{ROOT}wte.weight" if self.tied else HEAD

    def describe(self) -> str:
        """One line, as errors and `inspect` say it."""
        form = "Conv1D (transposed)" if self.transposed else "Linear"
        kind = f"GPTQ, {form}" if self.quantised else form
        head = "tied" if self.tied else "own"
        return f"{kind}, {'split q/kv' if self.split else 'fused c_attn'}, {head} head"

    def facts(self) -> dict[str, str]:
        """The decisions and what each rests on."""
        stored = [n for n, there in (("wte", self.has_wte), ("lm_head", self.has_head)) if there]
        return {
            "orientation": "Conv1D, [in, out]" if self.transposed else "Linear, [out, in]",
            "orientation_why": self.why,
            "attention": "split, q_attn and kv_attn" if self.split else "fused, c_attn",
            "head": "tied to the embedding" if self.tied else "of its own",
            "head_stored": " and ".join(stored),
            "names": "without the leading transformer." if self.bare else "transformer.*",
        }


def module_of(prefix: str) -> str:
    """transformer.h.0.attn.c_attn -> attn.c_attn"""
    return ".".join(prefix.rsplit(".", 2)[-2:])


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
    """Choose the layout and check every tensor against it; the first fault is raised as a
    SantagenError."""
    names = set(files.names())
    bare = not any(name.startswith(ROOT) for name in names)
    root = "" if bare else ROOT
    split = _is_split(files, config, root)
    quantised = any(name.endswith(".qweight") for name in names)
    if quantised:
        transposed = False
        why = "GPTQ packs every weight along its inputs, whatever it was made from"
    else:
        transposed, why = _orientation(files, config, root, SPLIT if split else FUSED)
    if not config.multi_query and (transposed or split):
        raise SantagenError(
            "config.json says multi_query false and the weights are "
            f"{'split' if split else 'Conv1D'}: files of this form differ in the order of c_attn, "
            "and nothing in them tells which order they have.",
            "Convert the checkpoint to GPTBigCodeForCausalLM with the code that made it.",
        )
    layout = Layout(
        transposed, split, config.tie_word_embeddings, bare,
        f"{root}wte.weight" in names, HEAD in names, quantised, why,
    )  # fmt: skip
    _check(files, config, layout)
    if not (layout.tied and layout.has_wte and layout.has_head):
        return layout
    if files.same(f"{root}wte.weight", HEAD):
        return layout
    note = f"{HEAD} is not the embedding that config.json ties it to: the head stored is used"
    return replace(layout, tied=False, note=note)


def _is_split(files: TensorFiles, config: ModelConfig, root: str) -> bool:
    """Whether attention is stored as q_attn + kv_attn, in every layer."""
    decided: tuple[bool, str] | None = None
    for layer in range(config.n_layer):
        for leaf in ("c_attn", "kv_attn"):
            name = f"{root}h.{layer}.attn.{leaf}"
            if not any(f"{name}.{part}" in files for part in ("weight", "qweight")):
                continue
            if decided is None:
                decided = leaf == "kv_attn", name
            elif decided[0] != (leaf == "kv_attn"):
                raise SantagenError(
                    f"The checkpoint {files.directory.name} holds {name} beside {decided[1]}: "
                    "attention is fused in one and split in the other.",
                    "Layouts were mixed: take all weights from one export.",
                )
    return decided is not None and decided[0]


def _orientation(
    files: TensorFiles, config: ModelConfig, root: str, modules: tuple[str, ...]
) -> tuple[bool, str]:
    """(transposed, why): the first weight that is not square decides, all others must agree."""
    decided: tuple[bool, str] | None = None
    for layer in range(config.n_layer):
        for module in modules:
            name = f"{root}h.{layer}.{module}.weight"
            out, inp = linear_shape(config, module)
            if out == inp or name not in files:
                continue
            info = files.info(name)
            if info.shape not in ((out, inp), (inp, out)):
                raise _wrong_shape(files, name, f"[{out}, {inp}] or, as Conv1D, [{inp}, {out}]")
            turned = info.shape == (inp, out)
            form = "Conv1D" if turned else "Linear"
            if decided is None:
                why = f"{name} is {list(info.shape)}, which is {form} for n_embd {config.n_embd}"
                decided = turned, why
            elif decided[0] != turned:
                raise SantagenError(
                    f"{name} in {info.file} is {list(info.shape)}, laid out as {form}, but "
                    f"{decided[1]}.",
                    "Layouts were mixed: take all weights from one export.",
                )
    if decided is not None:
        return decided
    turned = any(name.startswith("GPT2") for name in config.architectures)
    named = ", ".join(config.architectures) or "none"
    return turned, f"every weight is square, so the architecture decides ({named})"


def _expected(config: ModelConfig, layout: Layout) -> dict[str, tuple[int, ...] | None]:
    """Name in the file -> shape of all that must be there; None where gptq_checks.py checks it."""
    embd = config.n_embd
    wanted: dict[str, tuple[int, ...] | None] = {
        f"{ROOT}wte.weight": (config.vocab_size, embd),
        f"{ROOT}wpe.weight": (config.n_positions, embd),
        layout.head_weight_name: (config.vocab_size, embd),
    }
    for layer in range(config.n_layer):
        for norm in ("ln_1", "ln_2"):
            for part in ("weight", "bias"):
                wanted[f"{ROOT}h.{layer}.{norm}.{part}"] = (embd,)
        for module in layout.modules:
            out, inp = linear_shape(config, module)
            base = f"{ROOT}h.{layer}.{module}"
            wanted[f"{base}.bias"] = (out,)
            if layout.quantised:
                wanted |= {f"{base}.{part}": None for part in GPTQ_PARTS}
            else:
                wanted[f"{base}.weight"] = (inp, out) if layout.transposed else (out, inp)
    wanted |= {f"{ROOT}ln_f.{part}": (embd,) for part in ("weight", "bias")}
    return {layout.stored(name): shape for name, shape in wanted.items()}


def _check(files: TensorFiles, config: ModelConfig, layout: Layout) -> None:
    wanted = _expected(config, layout)
    if layout.tied and HEAD in files:  # stored twice: both must fit
        wanted[HEAD] = (config.vocab_size, config.n_embd)
    _check_unread(files, config, layout, wanted)
    for name, shape in wanted.items():
        if name not in files:
            raise SantagenError(
                f"The checkpoint {files.directory.name} lacks the tensor {name}"
                f"{f', which should be {list(shape)}' if shape else ''}{_where(files, name)}.",
                "Download the weights again, or take config.json from the same place.",
            )
        info = files.info(name)
        if shape is not None and info.shape != shape:
            raise _wrong_shape(files, name, str(list(shape)))
        if shape is not None and info.dtype not in FLOATS:
            raise SantagenError(
                f"{name} in {info.file} is of dtype {info.dtype}, which is no weight santagen "
                "reads.",
                "Use float32, float16, bfloat16 or GPTQ weights.",
            )


def _check_unread(
    files: TensorFiles,
    config: ModelConfig,
    layout: Layout,
    wanted: dict[str, tuple[int, ...] | None],
) -> None:
    spare: set[str] = set()
    if layout.quantised:
        spare = {f"{n.removesuffix('qweight')}g_idx" for n in wanted if n.endswith(".qweight")}
        spare |= set(GPTQ_SCALARS)
    for name, info in files.infos():
        if name not in wanted and name not in spare and not BUFFERS.fullmatch(name):
            raise SantagenError(
                f"{info.file} holds the tensor {name}, which a GPT-BigCode model of n_layer "
                f"{config.n_layer} ({layout.describe()}) does not have.",
                "config.json does not belong to these weights, or they are of another model.",
            )


def _where(files: TensorFiles, name: str) -> str:
    """The file that holds the rest of a missing tensor's layer, if that is one file."""
    layer = name.rpartition(".")[0].rpartition(".")[0]
    near = {info.file for other, info in files.infos() if other.startswith(f"{layer}.")}
    near = near or {info.file for _, info in files.infos()}
    return f" (looked for in {near.pop()})" if len(near) == 1 else ""


def _wrong_shape(files: TensorFiles, name: str, expected: str) -> SantagenError:
    info = files.info(name)
    return SantagenError(
        f"{name} in {info.file} has shape {list(info.shape)}; config.json asks for {expected}.",
        FROM_ONE_PLACE,
    )
