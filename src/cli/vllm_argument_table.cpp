// The table of vllm_arguments.h. Sentences go behind "NAME VALUE: ", begin in lower case and end without a full stop.
#include <iterator>

#include "cli/vllm_arguments.h"

namespace quire::cli {
namespace {

constexpr auto kFlag = VllmArgument::Takes::kFlag;
constexpr auto kSwitch = VllmArgument::Takes::kSwitch;
constexpr auto kValue = VllmArgument::Takes::kValue;
constexpr auto kValues = VllmArgument::Takes::kValues;
constexpr auto kTaken = VllmArgument::Verdict::kTaken;
constexpr auto kRefused = VllmArgument::Verdict::kRefused;

// What several say.
constexpr const char* kOneProcess =
    "a model is computed in one process, or in several by tensor and pipeline parallelism (--tensor-parallel-size, "
    "--pipeline-parallel-size), which have no such choice here";
constexpr const char* kNoTimeout = "processes wait for each other as long as they live; leave it out";
constexpr const char* kNoBalancer =
    "the engines of --data-parallel-size are in one process on one machine and have no such choice here; for several "
    "machines start several servers and put a load balancer before them";
constexpr const char* kNoMedia = "images, audio and video are not built yet; models are served with text alone";
constexpr const char* kNoLora =
    "adapters are LoRA of the language model's products, embedding and head, without this (docs/adapters.md)";
constexpr const char* kNoState = "recurrent layers have one kernel on each device, and states in float32; leave it out";
constexpr const char* kStates =
    "states of recurrent layers are float32, one behind every block of the cache; how many tokens a block has follows "
    "from their size (docs/kv_cache.md)";
constexpr const char* kNoTokenVectors = "vectors of each token are not built yet; texts become one vector each";
constexpr const char* kNoPlugins = "code of others is never loaded";
constexpr const char* kOneRevision = "a tokenizer comes from the model's own repository at --revision, or from a path";
constexpr const char* kNoOffload =
    "weights stay where the device reads them; take a smaller format (--quantization) or a smaller model";
constexpr const char* kNoTransfer = "caches are not sent to other servers; prompts are computed where answers are";
constexpr const char* kNoJson = "its members have flags of their own here (docs/arguments.md); give those";
constexpr const char* kOnlyBuiltIn = "kernels are chosen by the device and the format of a weight, not by a flag";
constexpr const char* kNoGrpc = "gRPC is not built; OpenAI's API is served over HTTP";
constexpr const char* kNoExperts =
    "experts are dealt out once, in their order, and steps wait for all ranks (--enable-expert-parallel)";
constexpr const char* kOverrides =
    "a model's configuration is read from its files as it is: edit config.json, or the GGUF file's metadata";
constexpr const char* kMetricsAreFixed = "the metrics are those that docs/server.md lists, always";
constexpr const char* kOldPrompts =
    "soft prompts are named with --lora-modules, beside --enable-prompt-adapter (docs/adapters.md)";

constexpr VllmArgument kArguments[] = {
    // ---- model ----
    {"--tokenizer-mode", kValue, kTaken, "auto|hf|slow|fast",
     "there is one tokenizer for all of these, quire's own; it reads tokenizer.json, a SentencePiece model and GGUF's "
     "vocabulary"},
    {"--trust-remote-code", kFlag, kTaken, "*", "no code of a checkpoint is ever run, trusted or not"},
    {"--hf-config-path", kValue, kRefused, "", kOverrides},
    {"--allowed-local-media-path", kValue, kRefused, "", kNoMedia},
    {"--allowed-media-domains", kValues, kRefused, "", kNoMedia},
    {"--code-revision", kValue, kTaken, "*", "no code of a checkpoint is ever run, of whichever revision"},
    {"--tokenizer-revision", kValue, kRefused, "", kOneRevision},
    {"--quantization-config", kValue, kRefused, "{}", "how weights are rounded is --quantization's to say"},
    {"--allow-deprecated-quantization", kFlag, kTaken, "*", "no format that is read here is deprecated"},
    {"--enable-return-routed-experts", kFlag, kRefused, "no", "which experts computed a token is not told"},
    {"--return-sampling-mask", kFlag, kRefused, "no", "the tokens that a filter left are not told"},
    {"--logprobs-mode", kValue, kRefused, "raw_logprobs",
     "log-probabilities are those of the raw logits (raw_logprobs); others are not built"},
    {"--use-fp64-gumbel", kFlag, kRefused, "no",
     "tokens are drawn by inverting the cumulative distribution (docs/sampling.md), without Gumbel noise"},
    {"--enable-trace-replay", kFlag, kRefused, "no",
     "use --trace-file, whose trace `quire replay` takes through the scheduler"},
    {"--disable-sliding-window", kFlag, kRefused, "no",
     "a model's windows are part of it; with --max-model-len of a window's size they change nothing"},
    {"--disable-cascade-attn", kFlag, kTaken, "*",
     "spans of prompts that sequences share are read once where that is quicker, which changes no answer"},
    {"--enable-prompt-embeds", kFlag, kRefused, "no", "prompts are texts or token ids; embeddings are not taken"},
    {"--config-format", kValue, kRefused, "auto|hf",
     "a model is a folder with config.json, or a GGUF file; Mistral's params.json is not read"},
    {"--hf-overrides", kValue, kRefused, "{}", kOverrides},
    {"--model-class-overrides", kValue, kRefused, "{}", kOverrides},
    {"--enable-sleep-mode", kFlag, kRefused, "no",
     "use --sleep-idle-seconds, or POST /models/unload of --enable-admin-endpoints"},
    {"--sleep-mode-offload-cudagraph", kFlag, kRefused, "no",
     "a model that sleeps here is unloaded, recorded steps too"},
    {"--sleep-preserve-parameter-names", kValues, kRefused, "", "a model that sleeps here is unloaded as a whole"},
    {"--enable-cumem-allocator", kFlag, kRefused, "no",
     "device memory is taken once, at start; there is one allocator"},
    {"--enable-nccl-comm-suspend", kFlag, kRefused, "no", kOneProcess},
    {"--model-impl", kValue, kRefused, "auto", "models are quire's own implementations; transformers is not run"},
    {"--logits-processors", kValues, kRefused, "", kNoPlugins},
    {"--io-processor-plugin", kValue, kRefused, "", kNoPlugins},
    {"--renderer-num-workers", kValue, kRefused, "1|2",
     "templates are rendered and prompts tokenized by two threads of the server"},

    // ---- loading ----
    {"--safetensors-load-strategy", kValue, kRefused, "auto|lazy",
     "safetensors files are mapped and read where weights are packed (lazy); others are not built"},
    {"--safetensors-prefetch-num-threads", kValue, kRefused, "", "files are mapped, not read ahead"},
    {"--safetensors-prefetch-block-size", kValue, kRefused, "", "files are mapped, not read ahead"},
    {"--model-loader-extra-config", kValue, kRefused, "{}", "there is no loader that would read it"},
    {"--ignore-patterns", kValues, kRefused, "", "of a folder only the files that a model is made of are read"},
    {"--use-tqdm-on-load", kFlag, kTaken, "*", "the progress of loading is a line of the log every three seconds"},
    {"--pt-load-map-location", kValue, kRefused, "cpu",
     "PyTorch's pickled files are not read; use safetensors or GGUF"},

    // ---- models with a recurrent state ----
    {"--mamba-backend", kValue, kRefused, "triton", kNoState},
    {"--mamba-ssu-algorithm", kValue, kRefused, "", kNoState},
    {"--enable-mamba-cache-stochastic-rounding", kFlag, kRefused, "no", kNoState},
    {"--mamba-cache-philox-rounds", kValue, kRefused, "0", kNoState},
    {"--mamba-cache-dtype", kValue, kTaken, "auto|float32", kStates},
    {"--mamba-ssm-cache-dtype", kValue, kTaken, "auto|float32", kStates},
    {"--mamba-block-size", kValue, kRefused, "", kStates},
    {"--mamba-cache-mode", kValue, kTaken, "none|all|align", kStates},
    {"--enable-mamba-shared-prefix-checkpoint", kFlag, kRefused, "no", kStates},
    {"--replayssm-buffer-len", kValue, kRefused, "", kStates},
    {"--use-replayssm", kFlag, kRefused, "no", kStates},
    {"--gdn-prefill-backend", kValue, kRefused, "", kOnlyBuiltIn},
    {"--kda-prefill-backend", kValue, kRefused, "auto", kNoState},
    {"--kda-decode-backend", kValue, kRefused, "auto", kNoState},

    // ---- structured output, tools, reasoning ----
    {"--reasoning-parser-plugin", kValue, kRefused, "", kNoPlugins},
    {"--tool-parser-plugin", kValue, kRefused, "", kNoPlugins},
    {"--enable-auto-tool-choice", kFlag, kTaken, "yes",
     "tool_choice \"auto\" is always heeded; --tool-call-parser none reads no calls at all"},
    {"--tool-strict-level", kValue, kRefused, "auto",
     "the arguments of every call are held to their schemas where the format can; there is no other level"},
    {"--tool-server", kValue, kRefused, "", "tools are run by clients; the server calls none"},
    {"--guided-decoding-backend", kValue, kTaken, "auto|xgrammar",
     "structured output is compiled by xgrammar behind our own checks; other backends are not built"},
    {"--guided-decoding-disable-fallback", kFlag, kTaken, "*", "there is one backend, and nothing to fall back to"},
    {"--guided-decoding-disable-any-whitespace", kFlag, kRefused, "no",
     "JSON may have white space between its parts; say otherwise with a grammar or a regex"},
    {"--guided-decoding-disable-additional-properties", kFlag, kRefused, "no",
     "write \"additionalProperties\": false into the schema"},
    {"--structured-outputs-config", kValue, kRefused, R"({}|{"backend":"auto"}|{"backend":"xgrammar"})",
     "structured output is compiled by xgrammar with bounds of its own; nothing of it is configured"},
    {"--reasoning-config", kValue, kRefused, "{}", "how reasoning is written is --reasoning-parser's to say"},
    {"--enable-reasoning", kSwitch, kTaken, "*", "reasoning is told apart wherever --reasoning-parser knows its form"},

    // ---- several devices and machines ----
    {"--distributed-timeout-seconds", kValue, kRefused, "", kNoTimeout},
    {"--cpu-distributed-timeout-seconds", kValue, kRefused, "", kNoTimeout},
    {"--numa-bind-nodes", kValues, kRefused, "",
     "each process has the nodes of its cores, which are --cpu-affinity's in the order of nodes, divided evenly"},
    {"--numa-bind-cpus", kValues, kRefused, "", "name the cores of all processes with --cpu-affinity"},
    {"--device-ids", kValues, kRefused, "", "name the card with --device cuda:N"},
    {"--decode-context-parallel-size,-dcp", kValue, kRefused, "1", kOneProcess},
    {"--dcp-comm-backend", kValue, kRefused, "", kOneProcess},
    {"--dcp-q-replicate", kFlag, kRefused, "no", kOneProcess},
    {"--dcp-kv-cache-interleave-size", kValue, kRefused, "1", kOneProcess},
    {"--cp-kv-cache-interleave-size", kValue, kRefused, "1", kOneProcess},
    {"--prefill-context-parallel-size,-pcp", kValue, kRefused, "1", kOneProcess},
    {"--data-parallel-rank,-dpn", kValue, kRefused, "0", kNoBalancer},
    {"--data-parallel-start-rank,-dpr", kValue, kRefused, "0", kNoBalancer},
    {"--data-parallel-size-local,-dpl", kValue, kRefused, "1", kNoBalancer},
    {"--data-parallel-address,-dpa", kValue, kRefused, "", kNoBalancer},
    {"--data-parallel-rpc-port,-dpp", kValue, kRefused, "", kNoBalancer},
    {"--data-parallel-backend,-dpb", kValue, kRefused, "mp", kNoBalancer},
    {"--data-parallel-hybrid-lb,-dph", kFlag, kRefused, "no", kNoBalancer},
    {"--data-parallel-external-lb,-dpe", kFlag, kRefused, "no", kNoBalancer},
    {"--data-parallel-multi-port-external-lb,-dpm", kSwitch, kRefused, "", kNoBalancer},
    {"--data-parallel-supervisor-port", kValue, kRefused, "", kNoBalancer},
    {"--dp-supervisor-probe-interval-s", kValue, kRefused, "", kNoBalancer},
    {"--dp-supervisor-probe-timeout-s", kValue, kRefused, "", kNoBalancer},
    {"--dp-supervisor-probe-failure-threshold", kValue, kRefused, "", kNoBalancer},
    {"--dp-sync-interval", kValue, kRefused, "", kNoBalancer},
    {"--enable-hc-sp", kFlag, kRefused, "no", kOneProcess},
    {"--enable-batch-sharded-sampling", kFlag, kRefused, "no", kOneProcess},
    {"--enable-ep-weight-filter", kFlag, kRefused, "no", kNoExperts},
    {"--all2all-backend", kValue, kRefused, "allgather_reducescatter", kNoExperts},
    {"--enable-dbo", kFlag, kRefused, "no", kNoExperts},
    {"--enable-shm-tensor-arena", kFlag, kRefused, "no", kOneProcess},
    {"--ubatch-size", kValue, kRefused, "0", kNoExperts},
    {"--enable-elastic-ep", kFlag, kRefused, "no", kNoExperts},
    {"--elastic-ep-max-dp-size", kValue, kRefused, "", kNoExperts},
    {"--dbo-decode-token-threshold", kValue, kRefused, "", kNoExperts},
    {"--dbo-prefill-token-threshold", kValue, kRefused, "", kNoExperts},
    {"--disable-nccl-for-dp-synchronization", kFlag, kTaken, "*", "one process computes, and nothing is synchronised"},
    {"--enable-eplb", kFlag, kRefused, "no", kNoExperts},
    {"--eplb-config", kValue, kRefused, "{}", kNoExperts},
    {"--num-redundant-experts", kValue, kRefused, "0", kNoExperts},
    {"--expert-placement-strategy", kValue, kRefused, "linear", kNoExperts},
    {"--max-parallel-loading-workers", kValue, kRefused, "1", "weights are packed by all compute threads (--threads)"},
    {"--ray-workers-use-nsight", kFlag, kRefused, "no",
     "Ray's workers here are processes of quire, which Nsight does not know"},
    {"--worker-use-ray", kSwitch, kRefused, "", "choose --distributed-executor-backend ray"},
    {"--worker-cls", kValue, kRefused, "auto", kNoPlugins},
    {"--worker-extension-cls", kValue, kRefused, "", kNoPlugins},
    {"--enable-fault-tolerance", kFlag, kRefused, "no",
     "a supervisor (systemd) starts a process again that has failed"},
    {"--fault-tolerance-config", kValue, kRefused, "{}",
     "a supervisor (systemd) starts a process again that has failed"},

    // ---- KV cache ----
    {"--prefix-caching-hash-algo", kValue, kTaken, "sha256|sha256_cbor|xxhash|xxhash_cbor|builtin",
     "a hash only finds a block; its tokens, parent and salt decide, so that a collision costs time and nothing else"},
    {"--prefix-cache-retention-interval", kValue, kRefused, "0",
     "blocks of the prefix cache go the longest unused first"},
    {"--kv-cache-dtype-skip-layers", kValues, kRefused, "",
     "all layers keep their cache in one type, --kv-cache-dtype"},
    {"--kv-sharing-fast-prefill", kFlag, kRefused, "no", "models whose layers share a cache are not built yet"},
    {"--swa-bounded-replay", kFlag, kRefused, "",
     "blocks that a window has left are given back, and what is missing is computed again; there is no choice"},
    {"--prefix-match-unit", kValue, kRefused, "", "prefixes are matched by blocks (--block-size)"},
    {"--kv-offloading-backend", kValue, kRefused, "native",
     "blocks go to host memory and to files as this program keeps them (--kv-offloading-size, --kv-offload-dir)"},
    {"--calculate-kv-scales", kFlag, kRefused, "no",
     "scales of an int8 cache are those of each vector; fp8 has none (docs/kv_cache.md)"},

    // ---- weights elsewhere ----
    {"--offload-backend", kValue, kRefused, "auto", kNoOffload},
    {"--cpu-offload-gb", kValue, kRefused, "0|0.0", kNoOffload},
    {"--cpu-offload-params", kValues, kRefused, "", kNoOffload},
    {"--offload-group-size", kValue, kRefused, "0", kNoOffload},
    {"--offload-num-in-group", kValue, kRefused, "1", kNoOffload},
    {"--offload-prefetch-step", kValue, kRefused, "1", kNoOffload},
    {"--offload-params", kValues, kRefused, "", kNoOffload},

    // ---- images, audio, video ----
    {"--language-model-only", kFlag, kTaken, "*", "only text is served, of any model"},
    {"--limit-mm-per-prompt", kValue, kRefused,
     R"({}|{"image":0}|{"image":0,"video":0}|{"image":0,"video":0,"audio":0}|{"image":0,"audio":0}|image=0)", kNoMedia},
    {"--enable-mm-embeds", kFlag, kRefused, "no", kNoMedia},
    {"--media-io-kwargs", kValue, kRefused, "{}", kNoMedia},
    {"--mm-processor-kwargs", kValue, kRefused, "{}", kNoMedia},
    {"--mm-processor-cache-gb", kValue, kRefused, "0", kNoMedia},
    {"--mm-processor-cache-type", kValue, kRefused, "lru", kNoMedia},
    {"--mm-hasher-algorithm", kValue, kRefused, "blake3", kNoMedia},
    {"--mm-shm-cache-max-object-size-mb", kValue, kRefused, "", kNoMedia},
    {"--mm-encoder-only", kFlag, kRefused, "no", kNoMedia},
    {"--mm-encoder-tp-mode", kValue, kRefused, "weights", kNoMedia},
    {"--mm-encoder-attn-backend", kValue, kRefused, "", kNoMedia},
    {"--mm-encoder-attn-dtype", kValue, kRefused, "", kNoMedia},
    {"--mm-encoder-fp8-scale-path", kValue, kRefused, "", kNoMedia},
    {"--mm-encoder-fp8-scale-save-path", kValue, kRefused, "", kNoMedia},
    {"--mm-encoder-fp8-scale-save-margin", kValue, kRefused, "", kNoMedia},
    {"--interleave-mm-strings", kFlag, kRefused, "no", kNoMedia},
    {"--skip-mm-profiling", kFlag, kTaken, "*", "there is no encoder whose memory would be profiled"},
    {"--video-pruning-rate", kValue, kRefused, "0|0.0", kNoMedia},
    {"--video-pruning-method", kValue, kRefused, "evs", kNoMedia},
    {"--mm-tensor-ipc", kValue, kRefused, "direct_rpc", kNoMedia},
    {"--mm-processor-device", kValue, kRefused, "auto|cpu", kNoMedia},
    {"--mm-ipc-gpu-memory-gb", kValue, kRefused, "0", kNoMedia},
    {"--mm-device-do-normalize", kFlag, kRefused, "", kNoMedia},
    {"--trust-request-mm-kwargs", kFlag, kRefused, "no", kNoMedia},
    {"--disable-chunked-mm-input", kFlag, kRefused, "no", kNoMedia},
    {"--disable-mm-preprocessor-cache", kFlag, kTaken, "*", "there is no such cache"},

    // ---- adapters ----
    {"--enable-tower-connector-lora", kFlag, kRefused, "no", kNoLora},
    {"--fully-sharded-loras", kFlag, kRefused, "no", kNoLora},
    {"--lora-target-modules", kValues, kRefused, "", kNoLora},
    {"--default-mm-loras", kValue, kRefused, "{}", kNoLora},
    {"--specialize-active-lora", kFlag, kRefused, "no", kNoLora},
    {"--enable-mixed-moe-lora-format", kFlag, kRefused, "no", kNoLora},
    {"--enable-moe-shared-loras", kFlag, kRefused, "no", kNoLora},
    {"--max-lora-cls-labels", kValue, kRefused, "", kNoLora},
    {"--enable-lora-bias", kFlag, kRefused, "no", kNoLora},
    {"--lora-extra-vocab-size", kValue, kRefused, "0", kNoLora},
    {"--long-lora-scaling-factors", kValues, kRefused, "", kNoLora},
    {"--qlora-adapter-name-or-path", kValue, kRefused, "", kNoLora},
    {"--prompt-adapters", kValues, kRefused, "", kOldPrompts},

    // ---- what is watched ----
    {"--logging-config", kValue, kRefused, "{}", "use --log-format and --log-level"},
    {"--log-config-file", kValue, kRefused, "", "use --log-format and --log-level"},
    {"--show-hidden-metrics-for-version", kValue, kRefused, "", kMetricsAreFixed},
    {"--collect-detailed-traces", kValues, kRefused, "",
     "spans have a request's own times, and none of single steps: use --flight-recorder-steps, or --trace-file"},
    {"--per-request-spec-decode-metrics", kValue, kRefused, "none",
     "guesses are counted for all requests together (/metrics); of its own prediction a request's usage tells"},
    {"--kv-cache-metrics", kFlag, kRefused, "no", kMetricsAreFixed},
    {"--kv-cache-metrics-sample", kValue, kRefused, "", kMetricsAreFixed},
    {"--custom-histogram-buckets", kValue, kRefused, "{}", kMetricsAreFixed},
    {"--cudagraph-metrics", kFlag, kRefused, "no", kMetricsAreFixed},
    {"--enable-layerwise-nvtx-tracing", kFlag, kRefused, "no", "ranges for NVIDIA's profiler are not written"},
    {"--enable-mfu-metrics", kFlag, kRefused, "no", kMetricsAreFixed},
    {"--enable-logging-iteration-details", kFlag, kRefused, "no",
     "the last steps are kept by --flight-recorder-steps, read at /admin/flight_recorder"},
    {"--jit-monitor-mode", kValue, kTaken, "*", "no kernel is compiled while requests are served"},
    {"--jit-monitor-verbose", kFlag, kTaken, "*", "no kernel is compiled while requests are served"},
    {"--aggregate-engine-logging", kSwitch, kTaken, "*", "there is one engine, and one log"},
    {"--enable-log-outputs", kFlag, kRefused, "no", "texts of answers are written to no log"},
    {"--enable-log-deltas", kFlag, kRefused, "no", "texts of answers are written to no log"},
    {"--log-error-stack", kFlag, kRefused, "no", "errors say what was wrong and what to do; there are no stacks"},
    {"--enable-per-request-metrics", kFlag, kRefused, "no",
     "answers do not bring their times; /metrics has them, and /admin/requests/{id} those of one"},
    {"--enable-server-load-tracking", kFlag, kTaken, "yes", "GET /load always counts"},
    {"--enable-prompt-tokens-details", kFlag, kTaken, "yes",
     "usage always says how many tokens of a prompt were cached"},
    {"--enable-request-id-headers", kFlag, kTaken, "yes", "every answer has an X-Request-Id"},

    // ---- scheduling ----
    {"--max-num-scheduled-tokens", kValue, kRefused, "", "use --max-num-batched-tokens"},
    {"--max-num-active-seqs", kValue, kRefused, "", "use --max-num-seqs"},
    {"--long-prefill-token-threshold-adaptive", kFlag, kRefused, "no", "use --long-prefill-token-threshold"},
    {"--max-long-partial-prefills", kValue, kRefused, "1", "use --max-num-partial-prefills, of prompts of any length"},
    {"--scheduler-cls", kValue, kRefused, "", kNoPlugins},
    {"--scheduler-reserve-full-isl", kFlag, kTaken, "yes", "a prompt is let in when all of it finds room, always"},
    {"--prefill-schedule-interval", kValue, kRefused, "1", "prompts may join every step"},
    {"--disable-hybrid-kv-cache-manager", kFlag, kRefused, "no", "layers with windows always give their blocks back"},
    {"--stream-interval", kValue, kRefused, "1", "each token is sent when it is there"},
    {"--scheduler-delay-factor", kValue, kRefused, "0|0.0", "a request is let in as soon as it finds room"},
    {"--num-lookahead-slots", kValue, kRefused, "0", "blocks for guesses are found as they are made"},
    {"--use-v2-block-manager", kSwitch, kTaken, "*", "there is one block manager"},
    {"--disable-async-output-proc", kSwitch, kTaken, "*",
     "outputs are processed on the threads of those who read them, which changes no answer"},
    {"--multi-step-stream-outputs", kFlag, kTaken, "*",
     "every token is sent when it is there, whatever --num-scheduler-steps"},

    // ---- compilation and kernels ----
    {"--cudagraph-capture-sizes,--cuda-graph-sizes", kValues, kRefused, "",
     "sizes are chosen; --max-cudagraph-capture-size bounds them and --enforce-eager records none"},
    {"--max-seq-len-to-capture", kValue, kTaken, "*",
     "a recorded step (on a card) is good for sequences of any length; --max-cudagraph-capture-size bounds its tokens"},
    {"--full-cuda-graph", kFlag, kTaken, "*", "steps that decode are recorded as a whole, mixed ones in pieces"},
    {"--ir-op-priority", kValue, kRefused, "{}", kOnlyBuiltIn},
    {"--enable-flashinfer-autotune", kFlag, kRefused, "no", "kernels are not tuned at start"},
    {"--moe-backend", kValue, kRefused, "auto", kOnlyBuiltIn},
    {"--linear-backend", kValue, kRefused, "auto", kOnlyBuiltIn},
    {"--sparse-indexer-topk-backend", kValue, kRefused, "auto", kOnlyBuiltIn},
    {"--compilation-config,-cc", kValue, kRefused, "{}|0|1|2|3",
     "kernels were compiled when quire was built; see --enforce-eager and --max-cudagraph-capture-size"},
    {"--optimization-level,-O", kValue, kTaken, "0|1|2|3",
     "kernels were compiled when quire was built; --enforce-eager is what turns recorded steps off"},
    {"--performance-mode", kValue, kRefused, "balanced", "see --max-num-seqs and --max-num-batched-tokens"},
    {"--attention-config,-ac", kValue, kRefused, "{}", "use --attention-backend"},
    {"--kernel-config", kValue, kRefused, "{}", kOnlyBuiltIn},

    // ---- whole subjects as JSON ----
    {"--disable-logprobs-during-spec-decoding", kFlag, kRefused, "no",
     "log-probabilities are those of the model whether tokens were guessed or not; who asks for none pays nothing"},
    {"--watermark-config", kValue, kRefused, "{}", "texts are not marked"},
    {"--diffusion-config,-dc", kValue, kRefused, "{}", "diffusion models are not built"},
    {"--ec-transfer-config", kValue, kRefused, "{}", kNoTransfer},
    {"--ec-manager-config", kValue, kRefused, "{}", kNoMedia},
    {"--engram-config", kValue, kRefused, "{}", "engram memories are not built"},
    {"--additional-config", kValue, kRefused, "{}", kNoJson},
    {"--aux-output-config", kValue, kRefused, "{}", "hidden states and routed experts are not told"},
    {"--profiler-config", kValue, kRefused, "{}",
     "each phase of a step is in /metrics; `quire bench` measures the rest"},
    {"--weight-transfer-config", kValue, kRefused, "{}", "weights are read from files, once"},

    // ---- server ----
    {"--chat-template-content-format", kValue, kTaken, "auto|string",
     "templates get a message's content as one string, its parts of text joined by line ends; lists of parts "
     "(\"openai\") are not built yet"},
    {"--sse-keep-alive-interval", kValue, kRefused, "0",
     "streams have no comments in between; give the proxy more time"},
    {"--cohere-is-reasoning-model", kFlag, kRefused, "", "Cohere's API is not built"},
    {"--cohere-format", kValue, kRefused, "", "Cohere's API is not built"},
    {"--anthropic-disabled-thinking-effort", kValue, kRefused, "auto",
     "without thinking, /v1/messages sets the template's enable_thinking to false"},
    {"--tokens-only", kFlag, kRefused, "no", "use --skip-tokenizer-init: token ids in and out"},
    {"--enable-scale-out", kFlag, kRefused, "no", "prompts are rendered and answers made by one server"},
    {"--grpc-port", kValue, kRefused, "", kNoGrpc},
    {"--grpc", kSwitch, kRefused, "", kNoGrpc},
    {"--api-server-count,-asc", kValue, kRefused, "1", "one process takes all connections, on threads"},
    {"--enable-ssl-refresh", kFlag, kRefused, "no", "certificates are read at start; start the server again"},
    {"--ssl-ciphers", kValue, kRefused, "", "TLS 1.2 and 1.3 with OpenSSL's own choice of ciphers"},
    {"--middleware", kValues, kRefused, "", kNoPlugins},
    {"--enable-offline-docs", kFlag, kRefused, "no",
     "there are no pages of documentation; /openapi.json describes the API"},
    {"--enable-flash-late-interaction", kFlag, kRefused, "no", kNoTokenVectors},
    {"--disable-frontend-multiprocessing", kSwitch, kTaken, "*",
     "the server and the engine are threads of one process"},
    {"--fail-on-environ-validation", kFlag, kRefused, "no", "of vLLM's variables only VLLM_API_KEY is read"},

    // ---- of older versions ----
    {"--rope-scaling", kValue, kRefused, "{}", kOverrides},
    {"--rope-theta", kValue, kRefused, "", kOverrides},
    {"--tokenizer-pool-size", kValue, kRefused, "0", "prompts are tokenized by two threads of the server"},
    {"--tokenizer-pool-type", kValue, kRefused, "", "prompts are tokenized by two threads of the server"},
    {"--tokenizer-pool-extra-config", kValue, kRefused, "{}", "prompts are tokenized by two threads of the server"},
    {"--logits-processor-pattern", kValue, kRefused, "", kNoPlugins},
    {"--override-neuron-config", kValue, kRefused, "{}", "AWS Neuron is not built"},
};

}  // namespace

std::span<const VllmArgument> vllm_arguments() {
  return kArguments;
}

}  // namespace quire::cli
