// Reads a model's numbers out of GGUF metadata, with their keys and ranges in the errors: what models/config_reader.h
// is for config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_description.h"
#include "types/model_config.h"

namespace quire::models {

class GgufReader {
 public:
  // The checkpoint must outlive the reader. REQUIRES: it has gguf().
  explicit GgufReader(const checkpoint::Checkpoint& checkpoint);

  const checkpoint::Checkpoint& checkpoint() const { return checkpoint_; }
  const checkpoint::GgufMetadata& metadata() const { return description_.metadata; }
  std::string_view architecture() const { return description_.architecture; }
  std::string full(std::string_view key) const;  // "block_count" -> "llama.block_count"
  bool has(std::string_view key) const { return metadata().has(full(key)); }

  // Errors: data_loss for a key that is missing or of the wrong type; invalid_argument for a number out of range, with
  // key, what was found and what was expected.
  Result<int64_t> integer(std::string_view key, int64_t low, int64_t high) const;
  Result<int64_t> integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const;
  Result<double> number(std::string_view key) const;  // finite
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> text_or(std::string_view key, std::string_view fallback) const;
  // A list, one integer for each layer, or one for all.
  Result<std::vector<int64_t>> integers_of_layers(std::string_view key, int64_t layers, int64_t low,
                                                  int64_t high) const;
  // "attention.sliding_window": `fallback` where it is absent, nothing where it is 0.
  Result<std::optional<int32_t>> window(std::optional<int32_t> fallback = {}) const;

  bool has_tensor(std::string_view name) const { return checkpoint_.find(name) != nullptr; }
  bool has_tensor_that_ends_with(std::string_view suffix) const;

 private:
  const checkpoint::Checkpoint& checkpoint_;
  const checkpoint::GgufDescription& description_;
};

// What families differ in of the numbers that all decoders have.
struct GgufDecoder {
  std::string_view size_key = "feed_forward_length";
  std::string_view norm_eps_key = "attention.layer_norm_rms_epsilon";
  Activation activation = Activation::kSilu;
  // Pairs that rotate together are neighbours: the converter permutes the rows of q and k of llama and granite.
  bool interleaved = false;
  // Sizes of feed-forward blocks and numbers of heads of keys may be lists, one for each layer: the first's are read.
  bool lists_layers = false;
  // Numbers of heads of keys are a list in which layers with a state in the place of attention have 0.
  bool recurrent_layers = false;
  // Sizes of feed-forward blocks are a list in which layers without one have 0: the largest is read.
  bool layers_without_mlp = false;
  // Whether context_length counts what the rope's scaling adds.
  bool scaled_context = false;
  int64_t trained_context = 0;  // before the rope's scaling, where the file does not say; 0: context_length
  // What the cache holds, where that is not what attention.key_length and attention.head_count_kv say: one head of this
  // size, all of which rotates.
  std::optional<int64_t> cached_head_dim;
};

// What all families of one shape with Llama have: sizes, heads, norm, biases, rope, special ids. The output projection
// has a bias where the queries' has one; a file without an output matrix has tied embeddings.
Result<ModelConfig> read_gguf_decoder(const GgufReader& reader, const GgufDecoder& decoder = {});

// The windows of the layers: of those that a list says, or of every layer but each `pattern`-th; none where the file
// has no window.
Status read_gguf_windows(const GgufReader& reader, int64_t pattern, ModelConfig& out);

// "attention.temperature_scale", whose period is "attention.temperature_length" or the rope's trained length.
Status read_gguf_query_growth(const GgufReader& reader, ModelConfig& out);

// Tokens of the vocabulary: as the metadata says, else of the tokenizer's list, else of the table of embeddings.
Result<int64_t> read_gguf_vocab_size(const GgufReader& reader);
Status read_gguf_special_ids(const GgufReader& reader, ModelConfig& out);

// num_experts, experts_per_token and intermediate_size; every layer sparse. `experts_per_token`: where the file does
// not say; 0: it must.
Result<MoeConfig> read_gguf_moe(const GgufReader& reader, const ModelConfig& model, std::string_view size_key,
                                int64_t experts_per_token = 0);

}  // namespace quire::models
