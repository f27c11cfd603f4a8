"""Times packed GPTQ weights beside bfloat16 on one GPU, with random weights of StarCoder's shape.

    python -m tests.gpu.measure_gptq [--part load kernels engine sweep] [--layers 40]
        [--forms bf16 packed symmetric act-order auto] [--batches 1 16 256 1024]
        [--bits 4] [--group 128]

load     device memory of the packed model, read from files, at its peak while it loads and after
kernels  microseconds of each product of a layer, by its way and the number of rows
engine   decode step and tokens per second of the whole model through the engine; zero points differ
         except in the form `symmetric`
sweep    the kernel's tiles, warps, stages and shares of K: the best for CONFIGS

Products are timed in a CUDA graph that goes through several copies of a weight, so that none is
found in the second-level cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.runtime.errors import OutOfResources

from santagen.bench.cases import Case
from santagen.bench.measure import Bench
from santagen.checkpoint.gptq_settings import GPTQSettings
from santagen.checkpoint.random_weights import RandomModel, random_model
from santagen.checkpoint.weights import open_weights
from santagen.config import ModelConfig
from santagen.kernels import gptq_matmul as gm
from santagen.kernels.gptq_matmul_triton import CONFIGS, Config, dequantize, launch
from santagen.kernels.gptq_packed import PackedWeight
from santagen.llm import LLM
from santagen.model.attention import select_attention
from santagen.model.gpt_bigcode import FlashSantacoderForCausalLM
from santagen.model.quantized import pack
from tests.gpu.random_gptq import quantised, random_layer, settings, write_gptq_model

CUDA = torch.device("cuda")
PRODUCTS = {  # outputs, inputs
    "attn.c_attn": (6400, 6144), "attn.c_proj": (6144, 6144),
    "mlp.c_fc": (24576, 6144), "mlp.c_proj": (6144, 24576),
}  # fmt: skip
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
TOUCHED = 300e6  # bytes of weights gone through before one comes again
Product = Callable[[Tensor, Any], Tensor]


def packed(name: str, form: GPTQSettings, seed: int = 0) -> PackedWeight:
    weight = pack(random_layer(*PRODUCTS[name], form, CUDA, seed))
    if name == "mlp.c_proj" and weight.order is not None:  # its order is laid into c_fc
        weight = dataclasses.replace(weight, order=None, inputs=weight.packed_inputs)
    return weight


def microseconds(product: Product, x: Tensor, weights: list[Any]) -> float:
    """Mean of one product with x, those with all the weights captured in a graph."""
    product(x, weights[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            product(x, weight)
    best = float("inf")
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) * 1e3 / len(weights))
    return best


def copies(weight: PackedWeight) -> list[PackedWeight]:
    count = max(1, round(TOUCHED / weight.nbytes))
    clones = [dataclasses.replace(weight, words=weight.words.clone()) for _ in range(count - 1)]
    return [weight, *clones]


def ways(counters: Tensor) -> dict[str, Product]:
    return {
        "fused": lambda x, w: launch(w.arrange(x), w, None, None, counters),
        "cuBLAS": lambda x, w: F.linear(w.arrange(x), dequantize(w, x.dtype)),
    }


def kernels(bits: int, group: int) -> None:
    """One line per product and number of rows; the last ones sum up a layer."""
    columns = ["bf16", "fused", "cuBLAS", "ao fused", "ao cuBLAS"]
    print(f"{'microseconds':16}{'rows':>6}" + "".join(f"{c:>13}" for c in columns))
    sums = {rows: [0.0] * len(columns) for rows in ROWS}
    for name, (outputs, inputs) in PRODUCTS.items():
        counters = gm.new_counters(outputs, CUDA)
        plain, ordered = (packed(name, settings(bits, group, order)) for order in (False, True))
        dense = dequantize(plain, torch.bfloat16)
        stores = [copies(weight) for weight in (plain, ordered)]
        denses = [dense.clone() for _ in range(max(1, round(TOUCHED / dense.nbytes)))]
        fused, cublas = ways(counters).values()
        plan: list[tuple[Product, list[Any]]] = [
            (F.linear, denses), (fused, stores[0]), (cublas, stores[0]),
        ]  # fmt: skip
        plan += [(product, stores[1]) for product in (fused, cublas)]
        for rows in ROWS:
            x = torch.randn(rows, inputs, device=CUDA).bfloat16()
            line = [microseconds(product, x, weights) for product, weights in plan]
            sums[rows] = [a + b for a, b in zip(sums[rows], line, strict=True)]
            print(f"{name:16}{rows:6}" + "".join(f"{v:13.1f}" for v in line), flush=True)
        del dense, denses, stores, plan
        release()
    for rows, line in sums.items():
        print(f"{'a layer':16}{rows:6}" + "".join(f"{v:13.1f}" for v in line), flush=True)


def launched(x: Tensor, weight: PackedWeight, **settings: Any) -> Tensor:
    return launch(x, weight, None, None, **settings)


def candidates(block_m: int) -> Iterator[Config]:
    for block_n, warps, stages in itertools.product((64, 128), (2, 4, 8), (2, 3, 4)):
        if block_n * block_m <= 2048 * warps:  # the sums fit the registers
            yield Config(block_n, warps, stages, 1)


def sweep(bits: int, group: int, rows: list[int]) -> None:
    """The five fastest launches of each product and number of rows."""
    for name, count in itertools.product(PRODUCTS, rows):
        weight = packed(name, settings(bits, group))
        store, counters = copies(weight), gm.new_counters(weight.outputs, CUDA)
        x = torch.randn(count, weight.inputs, device=CUDA).bfloat16()
        block_m = next((m for m in CONFIGS if m >= count), max(CONFIGS))
        found = []
        for config, splits in itertools.product(candidates(block_m), SPLITS):
            product = partial(launched, counters=counters, config=config, splits=splits)
            try:
                found.append((microseconds(product, x, store), config[:3], splits))
            except OutOfResources as error:  # a tile that does not fit is said, and left out
                print(f"{config}, {splits} splits: {error}", flush=True)
        present = microseconds(partial(launched, counters=counters), x, store)
        print(f"{name}, {count} rows: now {present:.1f} us; best block_n, warps, stages; splits:")
        for time_, shape, splits in sorted(found)[:5]:
            print(f"    {time_:8.1f} us  {shape}; {splits}", flush=True)
        release()


def model_of(layers: int) -> RandomModel:
    source = random_model("starcoder")
    return dataclasses.replace(source, config=dataclasses.replace(source.config, n_layer=layers))


def load(source: RandomModel, bits: int, group: int) -> None:
    """GB of a packed model, read from files; the first one's launches load CUDA's code too."""
    for act_order in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            form = settings(bits, group, act_order)
            path = write_gptq_model(Path(folder) / "model", source.config, form)
            load_one(path, "act-order" if act_order else "in order")


def load_one(path: Path, name: str) -> None:
    release()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.mem_get_info()[0]
    start = time.perf_counter()
    config = ModelConfig.from_directory(path)
    weights = open_weights(path, config, dtype=torch.bfloat16, device=CUDA)
    weights.packed = True
    attention = select_attention("auto", CUDA, torch.bfloat16, config, None)
    with torch.inference_mode():
        model = FlashSantacoderForCausalLM("", config, weights, attention.backend)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    reserved = torch.cuda.max_memory_reserved() / 1e9
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated() / 1e9
    taken = (before - torch.cuda.mem_get_info()[0]) / 1e9
    peak = torch.cuda.max_memory_allocated() / 1e9
    print(
        f"load, {name}: {held:.2f} GB of tensors, {taken:.2f} GB of device memory; at the peak "
        f"{peak:.2f} GB of tensors, {reserved:.2f} GB of device memory; {seconds:.1f} s",
        flush=True,
    )
    del model, weights


FORMS = {  # quantization, act-order, symmetric
    "bf16": ("none", False, False), "packed": ("gptq", False, False),
    "symmetric": ("gptq", False, True), "act-order": ("gptq", True, False),
    "auto": ("auto", False, False),
}  # fmt: skip


def engine(
    source: RandomModel, bits: int, group: int, forms: list[str], batches: list[int], new: int
) -> None:
    """A line per form and batch; the first form is what the others are compared with."""
    base: dict[int, float] = {}
    for form in forms:
        quantization, act_order, symmetric = FORMS[form]
        release()
        start = time.perf_counter()
        with quantised(settings(bits, group, act_order, symmetric)):
            llm = LLM(
                source, max_num_seqs=max(batches), max_model_len=512, quantization=quantization
            )
        print(f"{form}: ready after {time.perf_counter() - start:.1f} s", flush=True)
        print("\n".join(f"    {line}" for line in llm.describe()), flush=True)
        for batch, step in steps(llm, batches, new):
            base.setdefault(batch, step)
            print(
                f"    {batch:5} rows: {step:8.2f} ms a step, {batch / step * 1e3:9,.0f} tok/s, "
                f"{base[batch] / step:5.2f}x {forms[0]}",
                flush=True,
            )
        del llm


def steps(llm: LLM, batches: list[int], new: int) -> Iterator[tuple[int, float]]:
    """(batch, milliseconds of a decode step)."""
    bench = Bench(lambda: llm, temperature=0.8, top_p=1.0, repeat=2, warmup=1)
    for batch in batches:
        result = bench.measure(Case(batch, 16, new))
        if result.error:
            print(f"    {batch:5} rows: {result.error}", flush=True)
        else:
            yield batch, min(repeat.step_seconds for repeat in result.repeats) * 1e3


def release() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--part", nargs="+", default=["load", "kernels", "engine"],
        choices=["load", "kernels", "engine", "sweep"],
    )  # fmt: skip
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--forms", nargs="+", default=["bf16", "packed", "symmetric", "act-order"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 256, 1024])
    parser.add_argument("--new", type=int, default=64, help="tokens generated per row")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 32, 64, 256], help="of a sweep")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group", type=int, default=128)
    given = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    with torch.inference_mode():
        if "load" in given.part:
            load(model_of(given.layers), given.bits, given.group)
        if "kernels" in given.part:
            kernels(given.bits, given.group)
        if "sweep" in given.part:
            sweep(given.bits, given.group, given.rows)
    if "engine" in given.part:
        model = model_of(given.layers)
        engine(model, given.bits, given.group, given.forms, given.batches, given.new)


if __name__ == "__main__":
    main()
