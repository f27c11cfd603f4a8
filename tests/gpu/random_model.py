"""Checkpoints of any GPT-BigCode shape with random weights, for tests and measurements on a GPU."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

SANTACODER = {"n_embd": 2048, "n_head": 16, "n_layer": 24, "n_positions": 2048, "vocab_size": 49280}
STARCODER = {"n_embd": 6144, "n_head": 48, "n_layer": 40, "n_positions": 8192, "vocab_size": 49152}


def write_random_model(
    directory: Path,
    shape: dict[str, int],
    *,
    seed: int = 0,
    std: float = 0.02,
    logit_scale: float = 1.0,
) -> Path:
    """A standard bf16 checkpoint without tokenizer. Drawn on the GPU where there is one.

    `logit_scale` multiplies the last LayerNorm: at 1 the logits are nearly flat.
    """
    directory.mkdir(parents=True, exist_ok=True)
    embd, inner = shape["n_embd"], 4 * shape["n_embd"]
    head_dim = embd // shape["n_head"]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*size: int, scale: float = std) -> torch.Tensor:
        return (torch.randn(size, generator=generator, device=device) * scale).bfloat16().cpu()

    tensors = {
        "transformer.wte.weight": draw(shape["vocab_size"], embd),
        "transformer.wpe.weight": draw(shape["n_positions"], embd),
        "transformer.ln_f.weight": (1 + draw(embd)) * logit_scale,
        "transformer.ln_f.bias": draw(embd) * logit_scale,
    }
    for layer in range(shape["n_layer"]):
        for name, out, inp in (
            ("attn.c_attn", embd + 2 * head_dim, embd),
            ("attn.c_proj", embd, embd),
            ("mlp.c_fc", inner, embd),
            ("mlp.c_proj", embd, inner),
        ):
            tensors[f"transformer.h.{layer}.{name}.weight"] = draw(out, inp)
            tensors[f"transformer.h.{layer}.{name}.bias"] = draw(out)
        for name in ("ln_1", "ln_2"):
            tensors[f"transformer.h.{layer}.{name}.weight"] = 1 + draw(embd)
            tensors[f"transformer.h.{layer}.{name}.bias"] = draw(embd)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "gpt_bigcode",
        "architectures": ["GPTBigCodeForCausalLM"],
        "multi_query": True,
        "activation_function": "gelu_pytorch_tanh",
        "layer_norm_epsilon": 1e-5,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
        **shape,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def add_tokenizer(directory: Path, vocab_size: int) -> None:
    """A byte-level tokenizer whose tokens are the 256 bytes, then words of three to six bytes."""
    letters = sorted(ByteLevel.alphabet())
    vocab = {"<|endoftext|>": 0, **{letter: 1 + i for i, letter in enumerate(letters)}}
    chance = random.Random(0)
    while len(vocab) < vocab_size:
        word = "".join(chance.choices(string.ascii_lowercase, k=chance.randint(3, 6)))
        vocab.setdefault(word, len(vocab))
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(directory / "tokenizer.json"))
