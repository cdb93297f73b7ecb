"""What is run on a card: --correct, what is computed, and --fast, how fast. A list of parts, in their order."""

import dataclasses

LLAMA, QWEN, QWEN_MOE, DEEPSEEK = "llama-3.1-8b", "qwen3-0.6b", "qwen3-30b-a3b", "deepseek-v2-lite"


@dataclasses.dataclass
class Tests:
    name: str
    seconds: int
    program: str
    filter: str
    tool: list = dataclasses.field(default_factory=list)  # that it runs under
    test_seconds: int = 40


@dataclasses.dataclass
class Oracle:  # the default model beside the record of its answers
    name: str
    seconds: int
    flags: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Latency:  # batches of one engine: "BATCHxINPUTxOUTPUTxITERATIONS"
    name: str
    seconds: int
    shape: str
    cases: list
    flags: list = dataclasses.field(default_factory=list)
    card_only: bool = False
    adapters: int = 0  # of rank 16, which a batch's prompts take in turns; cases are measured without them too


@dataclasses.dataclass
class Throughput:
    name: str
    seconds: int
    shape: str
    requests: int
    tokens: int  # of a prompt and of an answer
    spread: float
    flags: list = dataclasses.field(default_factory=list)
    card_only: bool = False


@dataclasses.dataclass
class Command:
    name: str
    seconds: int
    command: list
    card_only: bool = False


SANITIZER = ["compute-sanitizer", "--error-exitcode", "9"]
CORRECT = [
    Tests("ops", 170, "test_ops", "*cuda*"),
    Command("attention_trial", 60, ["bin/quire", "try-attention"], card_only=True),
    Tests("tiny_models_float32", 70, "test_runner", "*TinyModels.*_cuda"),
    Tests("tiny_models_bfloat16", 60, "test_runner", "*RoundedModels.*_cuda"),
    Tests("recorded_steps", 60, "test_runner", "*RecordedSteps.*_cuda:*SharedBlocks.*_cuda"),
    Tests("engine", 90, "test_engine_cuda", "*-*AdaptersOnCard*"),
    Tests("adapters", 60, "test_runner", "*PeftAdapters.*_cuda:*AdapterStoreOnCard.*"),
    Tests("adapted_engine", 60, "test_engine_cuda", "*AdaptersOnCard*"),
    Oracle("smollm2_float32", 60),
    Oracle("smollm2", 60, ["--as-it-comes"]),
    Tests("runner", 70, "test_runner",
          "*cuda*-*TinyModels.*:*RoundedModels.*:*RecordedSteps.*:*SharedBlocks.*:*PeftAdapters.*:*AdapterStoreOnCard.*"),
    # What a test does not see: accesses outside of what was allocated.
    Tests("sanitizer_model", 90, "test_runner", "*TinyModels.LogitsAndPromptLogprobs*/llama_cuda", SANITIZER, 90),
    Tests("sanitizer_attention", 60, "test_ops", "*TensorCores*cuda_*_F16", SANITIZER, 60),
]

OVERLAP = ["--async-scheduling", "--max-num-batched-tokens", "8192"]
FAST = [
    Command("limits", 60, ["bin/quire", "bench", "kernels", "--limits-only", "--output-json", "limits.json"]),
    Latency("llama_8b", 120, LLAMA, ["1x1024x64x3", "1x2048x1x5", "1x8192x1x3", "32x1024x64x2", "128x1024x64x1",
                                     "256x1024x64x1"], OVERLAP),
    Command("kernels", 90, ["bin/quire", "bench", "kernels", "--seconds", "0.02", "--output-json", "kernels.json"],
            card_only=True),
    Latency("qwen3_06b", 60, QWEN, ["256x512x256x1"], OVERLAP),
    # nano-vllm's benchmark: 256 requests, 100 to 1,024 tokens in and out.
    Throughput("qwen3_06b_nano", 60, QWEN, 256, 562, 0.82),
    Throughput("llama_8b_fp8", 90, LLAMA, 512, 1000, 0, ["--quantization", "fp8", "--kv-cache-dtype", "fp8"]),
    Latency("qwen3_30b_a3b", 90, QWEN_MOE, ["64x512x32x1"], OVERLAP),
    Latency("deepseek_v2_lite", 60, DEEPSEEK, ["64x512x32x1"], OVERLAP),
    Latency("llama_8b_lora", 90, LLAMA, ["32x1024x64x2", "1x2048x1x3"], OVERLAP, adapters=32),
    Command("torch", 60, ["python3", "{scripts}/torch_beside.py", "torch.json"], card_only=True),
    # What graphs and overlap give: the host's time between two steps. The smaller the model, the more it counts.
    Latency("llama_8b_eager", 60, LLAMA, ["1x1024x64x1"], ["--enforce-eager"]),
    Latency("llama_8b_no_overlap", 60, LLAMA, ["32x1024x64x2"], ["--max-num-batched-tokens", "8192"]),
    Latency("qwen3_06b_no_overlap", 60, QWEN, ["256x512x256x1"], ["--max-num-batched-tokens", "8192"]),
    Latency("llama_8b_fa3", 60, LLAMA, ["1x8192x1x3"], [*OVERLAP, "--attention-backend", "fa3"], card_only=True),
    Latency("llama_8b_flashinfer", 60, LLAMA, ["1x8192x1x3", "32x1024x64x1"],
            [*OVERLAP, "--attention-backend", "flashinfer"], card_only=True),
    # Queries of latent attention, rounded, have room in the scratch up to some 7,500 tokens.
    Latency("deepseek_v2_lite_flashinfer", 60, DEEPSEEK, ["64x512x32x1"],
            ["--async-scheduling", "--max-num-batched-tokens", "4096", "--attention-backend", "flashinfer"],
            card_only=True),
]
MODES = {"correct": CORRECT, "fast": FAST}
