"""Which process of a run this is, and how its processes divide the work. Plain numbers, no torch.

    rank   0  1 | 2  3 | 4  5        tensor_parallel 2, data_parallel 3
    group    0  |   1  |   2         a group holds one copy of the model and draws rows of its own
    shard  0  1   0  1   0  1        shard 0 leads its group: it reads the rows and writes samples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from santagen.config import ModelConfig
from santagen.errors import SantagenError


@dataclass(frozen=True, slots=True)
class World:
    """Process `rank` of `size`, the `local_rank`-th of `local_size` on its node."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    tensor_parallel: int = 1

    @property
    def data_parallel(self) -> int:
        return self.size // self.tensor_parallel

    @property
    def group(self) -> int:
        return self.rank // self.tensor_parallel

    @property
    def shard(self) -> int:
        return self.rank % self.tensor_parallel

    @property
    def leads(self) -> bool:
        """Whether this rank reads rows and writes samples for its group."""
        return self.shard == 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> World:
        """What torchrun (or another launcher with its variables) says; one process without it."""
        rank = _number(environment, "RANK", 0)
        size = _number(environment, "WORLD_SIZE", 1)
        local_rank = _number(environment, "LOCAL_RANK", 0)
        local_size = _number(environment, "LOCAL_WORLD_SIZE", size)
        if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
            raise SantagenError(
                f"RANK {rank}, WORLD_SIZE {size}, LOCAL_RANK {local_rank} and LOCAL_WORLD_SIZE "
                f"{local_size} don't fit together.",
                "Start the processes with torchrun, which sets them.",
            )
        return cls(rank, size, local_rank, local_size)


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise SantagenError(
            f"The environment variable {name} is {text!r}, which is no whole number.",
            "torchrun sets it; unset it to run one process.",
        ) from None


def sizes(
    tensor_parallel: int | None, data_parallel: int | None, world_size: int | None
) -> tuple[int, int]:
    """(tensor-parallel, data-parallel) size from what was asked for, None where nothing was.

    `world_size` None: nothing is launched yet, so they decide it. Otherwise they must multiply to
    it; the one left out takes the rest, data-parallel where both are.
    """
    if world_size is None:
        return tensor_parallel or 1, data_parallel or 1
    if tensor_parallel is None:
        tensor_parallel = 1 if data_parallel is None else max(1, world_size // data_parallel)
    if data_parallel is None:
        data_parallel = max(1, world_size // tensor_parallel)
    if tensor_parallel * data_parallel != world_size:
        raise SantagenError(
            f"-tp {tensor_parallel} times -dp {data_parallel} is "
            f"{tensor_parallel * data_parallel}, but {world_size} processes were started.",
            f"Start {tensor_parallel * data_parallel} processes, or leave one of -tp and -dp out.",
        )
    return tensor_parallel, data_parallel


def check_model_divides(config: ModelConfig, tensor_parallel: int) -> None:
    """Refuse a tensor-parallel size that the model's heads or inner width can't be cut into."""
    heads = config.n_head
    good = [n for n in range(1, heads + 1) if heads % n == 0 and config.n_inner % n == 0]
    hint = f"Choose -tp from {', '.join(map(str, good))}."
    if tensor_parallel > heads:
        raise SantagenError(
            f"-tp {tensor_parallel} is more than the model's {heads} attention heads.", hint
        )
    if heads % tensor_parallel:
        raise SantagenError(
            f"The model's {heads} attention heads can't be shared by -tp {tensor_parallel} ranks.",
            hint,
        )
    if config.n_inner % tensor_parallel:
        raise SantagenError(
            f"The model's n_inner {config.n_inner} can't be shared by -tp {tensor_parallel} ranks.",
            hint,
        )


def check_gpus(local_size: int, gpus: int, node: str = "this node") -> None:
    """Refuse more processes on a node than it has GPUs."""
    if local_size > gpus:
        raise SantagenError(
            f"{local_size} processes were asked for on {node}, which has "
            f"{gpus} GPU{'s' if gpus != 1 else ''}.",
            f"Start at most {gpus} processes a node, or use --device cpu.",
        )
