"""santagen: fast, exact batch code generation for the GPT-BigCode family.

    from santagen import LLM, SamplingParams

    llm = LLM()                                   # the small model that ships with the package
    for sample in llm.generate(["def add(a, b):\\n"], SamplingParams(max_tokens=32)):
        print(sample.completion)

Importing this package imports no torch: `LLM` is loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from santagen.environment import prepare_environment
from santagen.errors import SantagenError
from santagen.request import SampleOutput, SamplingParams

if TYPE_CHECKING:
    from santagen.llm import LLM

__version__ = "0.1.0"
prepare_environment()
__all__ = ["LLM", "SampleOutput", "SamplingParams", "SantagenError", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from santagen.llm import LLM

        return LLM
    raise AttributeError(f"module 'santagen' has no attribute {name!r}")
