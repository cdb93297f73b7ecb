// An opened checkpoint: where its tensors lie and what it says about the model. The files are memory-mapped and checked
// from end to end of their headers before anything is believed; tensor data is not touched.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "checkpoint/sentence_files.h"
#include "tensor/tensor.h"
#include "types/engine_choices.h"
#include "types/vocabulary.h"

namespace quire::checkpoint {

enum class Format { kSafetensors, kGguf };

struct GgufDescription;
struct ParameterSpec;
struct QuantizationConfig;

struct CheckpointTensor {
  std::string name;         // Hugging Face's name ("model.layers.0.self_attn.q_proj.weight") in either format
  std::string stored_name;  // as in the file ("blk.0.attn_q.weight")
  TensorView view;  // data in the mapped file, aligned to its elements; shape outermost first: a Linear is [out, in]
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // `path`: a .gguf file (of a split model the first part, ...-00001-of-0000N.gguf), or a directory with config.json
  // and *.safetensors (single, or sharded with model.safetensors.index.json). Errors: not_found; data_loss for a
  // malformed file, naming file, field, what was found and what was expected; unimplemented for tensor types and
  // formats that are understood but not built (pickle files are refused by name).
  // kDummy: config.json, or a directory with it; tokenizer and template are read where they are there.
  static Result<std::shared_ptr<const Checkpoint>> open(const std::string& path, LoadFormat format = LoadFormat::kAuto);

  virtual Format format() const = 0;
  // The config.json of safetensors; empty for GGUF, where gguf() says what the model is.
  virtual const boost::json::object& config() const = 0;
  virtual const GgufDescription* gguf() const { return nullptr; }  // nullptr: config() says it
  // What config() says of codes that weights are stored in; nullptr: nothing.
  virtual const QuantizationConfig* quantization() const { return nullptr; }
  // generation_config.json (eos_token_id lists live there), empty when there is none; of GGUF what it would say.
  virtual const boost::json::object& generation_config() const = 0;

  virtual std::span<const CheckpointTensor> tensors() const = 0;
  // nullptr: no such tensor. Name as in CheckpointTensor::name.
  virtual const CheckpointTensor* find(std::string_view name) const = 0;

  // The tensor of a parameter that a model declares; nullptr: there is none of that shape.
  virtual const CheckpointTensor* declared(const ParameterSpec& spec) const;

  // GGUF's vocabulary; nullopt for safetensors (whose tokenizer is tokenizer.json beside it) or when it has none.
  virtual std::optional<Vocabulary> vocabulary() const = 0;
  // tokenizer.json's text and tokenizer_config.json beside safetensors; empty when there is none.
  virtual std::string tokenizer_json() const = 0;
  // Bytes of SentencePiece's tokenizer.model beside safetensors; empty when there is none.
  virtual std::string sentencepiece_model() const { return {}; }
  virtual const boost::json::object& tokenizer_config() const = 0;
  // The chat template's source: GGUF tokenizer.chat_template; chat_template.jinja or tokenizer_config.json's
  // chat_template (a string, or the entry named "default" of a list). Empty when there is none.
  virtual std::string chat_template() const = 0;

  virtual const SentenceFiles& sentence_files() const;

  virtual int64_t total_tensor_bytes() const = 0;
  // Most common dtype of the matrices, for people: "Q4_1", "BF16".
  virtual std::string dtype_summary() const = 0;
  // For people: that, or what codes the weights are stored in.
  std::string describe_weights() const;
};

// A parameter that a model declares. models/<family>.cpp makes the list; loading and `quire plan` both read it.
struct ParameterSpec {
  std::string name;  // Hugging Face's
  Shape shape;
  bool optional = false;
  bool is_codes = false;  // of a format of several tensors: may be of whole numbers
};

// Every declared parameter present with its shape, and nothing beyond them. Names of tensors that carry no parameters
// in some checkpoints (rotary_emb.inv_freq buffers, lm_head.weight repeated beside tied embeddings) are listed in
// `ignored_suffixes`; those of other parts of a larger model (an image encoder) begin with `ignored_prefixes`. Errors:
// data_loss listing up to 8 of each: missing, extra, wrongly shaped (found, expected).
Status match_parameters(const Checkpoint& checkpoint, std::span<const ParameterSpec> specs,
                        std::span<const std::string_view> ignored_suffixes,
                        std::span<const std::string_view> ignored_prefixes = {});

// What of a checkpoint is left alone because its name begins with one of `prefixes`: "12 tensors (3.4 MB) of
// vision_tower.". Empty where there is none.
std::string describe_left_alone(const Checkpoint& checkpoint, std::span<const std::string_view> prefixes);

}  // namespace quire::checkpoint
