#include "cli/options.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace quire::cli {
namespace {

constexpr const char* kDefaultModelFile = "SmolLM2-135M-Instruct.Q4_1.gguf";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

std::string default_model_path() {
  std::filesystem::path cache = environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = std::filesystem::path(environment("HOME")) / ".cache";
  return (cache / "quire" / "models" / kDefaultModelFile).string();
}

void add_model_argument(CLI::App& app, EngineConfig& config) {
  app.add_option("model", config.model,
                 "A .gguf file, or a directory with config.json and safetensors; nothing: the default model")
      ->type_name("MODEL");
}

void add_engine_options(CLI::App& app, EngineConfig& config) {
  constexpr const char* kModel = "Model";
  app.add_option("--tokenizer", config.tokenizer,
                 "tokenizer.json, or a directory that holds one, instead of the model's own")
      ->group(kModel);
  app.add_option("--chat-template", config.chat_template,
                 "Jinja template (a file, or the text) instead of the model's own")
      ->group(kModel);
  app.add_flag("--skip-tokenizer-init", config.skip_tokenizer_init, "Serve token ids only, without a tokenizer")
      ->group(kModel);
  app.add_option("--max-model-len", config.max_model_len,
                 "Tokens of prompt and answer together; 0: what the model was made for")
      ->group(kModel)
      ->check(CLI::NonNegativeNumber);
  app.add_option("--dtype", config.dtype, "Of the weights: auto (as stored)")->group(kModel)->capture_default_str();
  app.add_option("--activation-dtype", config.activation_dtype, "float32")->group(kModel)->capture_default_str();

  constexpr const char* kMemory = "Memory and scheduling";
  app.add_option("--block-size", config.block_size, "Tokens a KV block")->group(kMemory)->capture_default_str();
  app.add_option("--kv-cache-memory-bytes", config.kv_cache_memory_bytes,
                 "Size of the KV pool (512M, 4G, ...); 0: a share of the free memory")
      ->group(kMemory)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app.add_option("--gpu-memory-utilization,--memory-utilization", config.memory_utilization,
                 "Share of the memory left after the weights that the KV pool may take")
      ->group(kMemory)
      ->capture_default_str();
  app.add_option("--kv-cache-dtype", config.kv_cache_dtype,
                 "auto (float32), float32, float16, bfloat16, fp8 (fp8_e4m3), fp8_e5m2 or int8: docs/kv_cache.md")
      ->group(kMemory)
      ->capture_default_str();
  app.add_option("--max-num-seqs", config.max_num_seqs, "Sequences computed at once")
      ->group(kMemory)
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", config.max_num_batched_tokens, "Tokens computed in one step")
      ->group(kMemory)
      ->capture_default_str();
  app.add_option("--max-num-queued-reqs", config.max_num_queued_reqs, "Requests that may wait; more are refused")
      ->group(kMemory)
      ->capture_default_str();

  constexpr const char* kMachine = "Machine";
  app.add_option("--threads", config.threads, "Compute threads; 0: one a core")->group(kMachine)->capture_default_str();
  app.add_option("--isa", config.isa, "Instruction set of the kernels: auto, portable, avx2")
      ->group(kMachine)
      ->capture_default_str();
}

void add_sampling_options(CLI::App& app, SamplingParams& params) {
  constexpr const char* kSampling = "Sampling";
  app.add_option("--max-tokens", params.max_tokens, "Most tokens of an answer")->group(kSampling);
  app.add_option("--min-tokens", params.min_tokens, "Fewest tokens of an answer")->group(kSampling);
  app.add_option("--temperature", params.temperature, "0: always the likeliest token")
      ->group(kSampling)
      ->capture_default_str();
  app.add_option("--top-p", params.top_p, "Keep the likeliest tokens of this mass")
      ->group(kSampling)
      ->capture_default_str();
  app.add_option("--top-k", params.top_k, "Keep so many of the likeliest tokens; 0: all")
      ->group(kSampling)
      ->capture_default_str();
  app.add_option("--min-p", params.min_p, "Drop tokens under this share of the likeliest")
      ->group(kSampling)
      ->capture_default_str();
  app.add_option("--repetition-penalty", params.repetition_penalty, "Over 1: fewer repeats")
      ->group(kSampling)
      ->capture_default_str();
  app.add_option("--presence-penalty", params.presence_penalty, "Over 0: new tokens")
      ->group(kSampling)
      ->capture_default_str();
  app.add_option("--frequency-penalty", params.frequency_penalty, "Over 0: rarer tokens")
      ->group(kSampling)
      ->capture_default_str();
  app.add_option("--stop", params.stop, "End the answer before this text; may be repeated")->group(kSampling);
  app.add_flag("--ignore-eos", params.ignore_eos, "Go on after the model's own end")->group(kSampling);
}

Status resolve_model(EngineConfig& config) {
  const bool is_default = config.model.empty();
  if (is_default) config.model = default_model_path();
  std::error_code error;
  if (std::filesystem::exists(config.model, error)) return {};
  if (is_default) {
    return not_found(
        "the default model is not there ({}). Get it with ./quickstart.sh or scripts/fetch_model.sh, or name a .gguf "
        "file "
        "or a model directory.",
        config.model);
  }
  return not_found(
      "there is no file or directory \"{}\". MODEL is a .gguf file or a directory with config.json and "
      "safetensors.",
      config.model);
}

int fail(const Status& status) {
  std::fprintf(stderr, "quire: %s\n", status.message().c_str());
  return kExitError;
}

int exit_code_of(const Status& status) {
  return status.ok() ? kExitOk : fail(status);
}

}  // namespace quire::cli
