"""Chooses the attention backend of a run, and says why not a better one. Computes no attention
itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from santagen.config import ModelConfig
from santagen.errors import SantagenError
from santagen.kernels.triton_support import has_triton, interpreted
from santagen.model.attention.base import AttentionBackend
from santagen.model.attention.cpu import CpuAttention
from santagen.model.attention.flash import FlashAttention, Varlen, causal_varlen, fa3_operator
from santagen.model.attention.sdpa import SdpaAttention
from santagen.model.attention.triton import TritonAttention

CHOICES = ("auto", "flash", "triton", "torch")
FA3_HEAD_DIM = 128  # what all large models of this family have
FA3_CAPABILITY = (9, 0)


@dataclass(frozen=True)
class Selection:
    """The backend, and one line for the user: what is used, and why nothing faster is."""

    backend: AttentionBackend
    reason: str


def select_attention(
    choice: str,
    device: torch.device,
    dtype: torch.dtype,
    config: ModelConfig,
    block_size: int | None = None,
    invariant: bool = False,
) -> Selection:
    """Pick the backend for this device and model; a forced one that can't run is a SantagenError.

    block_size None takes the backend's own; one that it can't page is refused. `invariant`: one
    whose bits for a row depend on no other row.
    """
    selection = _invariant(choice, device) if invariant else None
    selection = selection or _select(choice, device, dtype, config)
    backend = selection.backend
    if block_size is not None:
        if block_size < 1 or block_size % backend.block_multiple:
            raise SantagenError(
                f"--block-size {block_size} does not suit attention {backend.name}, whose blocks "
                f"are "
                f"a multiple of {backend.block_multiple} tokens.",
                f"Leave it out, or give a multiple of {backend.block_multiple}.",
            )
        backend.block_size = block_size
    return selection


def _select(
    choice: str, device: torch.device, dtype: torch.dtype, config: ModelConfig
) -> Selection:
    if choice not in CHOICES:
        raise SantagenError(
            f"--attention {choice} is not known.", f"Choose one of {', '.join(CHOICES)}."
        )
    if device.type == "cpu" and not (choice == "triton" and interpreted()):
        if choice in ("flash", "triton"):
            raise SantagenError(
                f"--attention {choice} needs a CUDA device; this run is on the CPU.",
                "Use --attention torch, or --device cuda on a machine with a GPU.",
            )
        return Selection(CpuAttention(), "attention torch: the block-wise CPU form")
    if choice == "torch":
        return Selection(SdpaAttention(), "attention torch: asked for")
    if choice in ("auto", "triton") and has_triton():
        fa3, why = _fa3(device, dtype, config) if choice == "auto" else (None, "")
        prefill = "FlashAttention-3 prefill, Triton decode" if fa3 else "prefill and decode"
        note = f" (FlashAttention-3 prefill is faster, but {why})" if why else ""
        return Selection(TritonAttention(varlen=fa3), f"attention triton: {prefill}{note}")
    if choice == "triton":
        raise SantagenError(
            "--attention triton can't run here: Triton is not installed.",
            "pip install triton, or use --attention torch.",
        )
    flash, why = _flash(device, dtype, config)
    if flash is not None:
        return Selection(flash, f"attention flash: {why}")
    if choice == "flash":
        raise SantagenError(
            f"--attention flash can't run here: {why}.",
            "Use --attention triton or --attention torch.",
        )
    return Selection(
        SdpaAttention(), f"attention torch: Triton and flash-attn are faster, but {why}"
    )


def _invariant(choice: str, device: torch.device) -> Selection | None:
    """The backend of --invariant; None on the CPU, whose own backend is so anyway."""
    if device.type == "cpu" and not interpreted():
        return None
    if choice not in ("auto", "triton") or not has_triton():
        raise SantagenError(
            f"--invariant needs the Triton kernels, which --attention {choice} does not use here.",
            "Leave --attention out, or install Triton (pip install triton).",
        )
    return Selection(TritonAttention(invariant=True), "attention triton: the invariant form")


def _flash(
    device: torch.device, dtype: torch.dtype, config: ModelConfig
) -> tuple[FlashAttention | None, str]:
    """FlashAttention-2, with 3 where it runs: (backend, what is used) or (None, why not)."""
    why = _not_half(dtype)
    if why:
        return None, why
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError as error:
        return None, f"it does not import ({error}); pip install 'santagen[cuda]'"
    broken = _probe(flash_attn_varlen_func, device, dtype, config)
    if broken:
        return None, f"it does not run on this shape ({broken})"
    fa3, why = _fa3(device, dtype, config)
    if fa3 is None:
        return FlashAttention(), f"FlashAttention-2 (no FlashAttention-3: {why})"
    return FlashAttention(fa3), "FlashAttention-3 prefill, FlashAttention-2 decode"


def _fa3(
    device: torch.device, dtype: torch.dtype, config: ModelConfig
) -> tuple[Varlen | None, str]:
    """FlashAttention-3's prefill, or (None, why not)."""
    why = _not_half(dtype) or _not_measured(device, config)
    if why:
        return None, why
    try:
        import flash_attn_interface
    except ImportError as error:
        return None, f"it does not import ({error})"
    # The operator itself where it is registered: the function around it imports a compiler,
    # which takes seconds.
    registered = hasattr(torch.ops.flash_attn_3, "fwd")
    varlen = fa3_operator if registered else flash_attn_interface.flash_attn_varlen_func
    broken = _probe(varlen, device, dtype, config)
    return (None, f"it does not run on this shape ({broken})") if broken else (varlen, "")


def _not_measured(device: torch.device, config: ModelConfig) -> str:
    """A build of FlashAttention-3 that lacks a head size or a processor ends the whole process, so
    nothing is tried out but what it is known, and measured, to run."""
    if config.head_dim != FA3_HEAD_DIM:
        return f"it is used for heads of {FA3_HEAD_DIM}, not {config.head_dim}"
    found = torch.cuda.get_device_capability(device)
    if found != FA3_CAPABILITY:
        wanted, own = (".".join(map(str, pair)) for pair in (FA3_CAPABILITY, found))
        return f"it is used on compute capability {wanted}, not {own}"
    return ""


def _not_half(dtype: torch.dtype) -> str:
    if dtype in (torch.float16, torch.bfloat16):
        return ""
    return f"it takes float16 and bfloat16, not {str(dtype).removeprefix('torch.')}"


def _probe(
    varlen: Varlen, device: torch.device, dtype: torch.dtype, config: ModelConfig
) -> str:
    """Run a kernel on a few tokens; "" if its numbers are right, else one line that says what is
    wrong."""
    n_head, n_kv_head, head_dim = config.n_head, config.n_kv_head, config.head_dim
    generator = torch.Generator(device=device).manual_seed(0)

    def draw(heads: int) -> torch.Tensor:
        return torch.randn(7, heads, head_dim, generator=generator, device=device, dtype=dtype)

    query, key, value = draw(n_head), draw(n_kv_head), draw(n_kv_head)
    cu = torch.tensor([0, 7], dtype=torch.int32, device=device)
    try:
        out = causal_varlen(varlen, query, key, value, cu, 7, head_dim**-0.5)
    except (RuntimeError, TypeError, AttributeError) as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    heads = [t.float().expand(-1, n_head, -1).transpose(0, 1) for t in (query, key, value)]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        heads[0], heads[1], heads[2], is_causal=True
    ).transpose(0, 1)
    error_size = float((out.float() - wanted).abs().max())
    return "" if error_size < 0.05 else f"its result is off by {error_size:.3g}"
