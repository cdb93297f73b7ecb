// What a user decides about an engine. Names and defaults are vLLM's where vLLM has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace quire {

struct EngineConfig {
  std::string served_model_name;  // labels the metrics
  std::string model;              // .gguf file or Hugging Face directory
  std::string tokenizer;          // directory or tokenizer.json; empty: the model's own
  std::string chat_template;      // file or template text; empty: the model's own
  bool skip_tokenizer_init = false;

  std::string dtype = "auto";  // of 16/32-bit weights: only "auto" (as stored)
  std::string activation_dtype = "float32";
  std::string kv_cache_dtype = "auto";  // "auto" = float32 | "float32" | "bfloat16" | "float16"
  int64_t max_model_len = 0;            // 0: what the model was trained for
  int32_t block_size = 16;              // tokens a KV block
  int64_t kv_cache_memory_bytes = 0;    // 0: from free memory
  double memory_utilization = 0.5;      // share of free memory (after weights) the KV pool may take on CPU
  int32_t max_num_seqs = 128;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_num_queued_reqs = 4096;  // beyond it: resource_exhausted
  int32_t max_logprobs = 20;
  uint64_t seed = 0;

  int32_t threads = 0;       // 0: one a core this process may use
  std::string isa = "auto";  // "auto" | "portable" | "avx2"
};

}  // namespace quire
