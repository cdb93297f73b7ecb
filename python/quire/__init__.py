"""quire: language models out of a paged KV cache, in this process.

    from quire import LLM, SamplingParams
    llm = LLM(model="model.gguf")
    print(llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text)

Names are vLLM's; docs/python.md says which of them are the same here, narrower or missing.
"""

from quire._engine import set_log_level
from quire._engine import version as __version__
from quire.async_llm import AsyncLLM
from quire.inputs import TextPrompt, TokensPrompt
from quire.llm import LLM, AsyncEngineArgs, EngineArgs
from quire.lora.request import LoRARequest
from quire.outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    Logprob,
    LogprobArrays,
    RequestOutput,
)
from quire.pooling import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
)
from quire.sampling_params import (
    BeamSearchParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from quire.tokenizer import Tokenizer

AsyncLLMEngine = AsyncLLM

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EngineArgs",
    "LoRARequest",
    "Logprob",
    "LogprobArrays",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "Tokenizer",
    "__version__",
    "set_log_level",
]
