// What a directory in Hugging Face's layout says beside its weights.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <boost/json.hpp>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/directory_files.h"
#include "checkpoint/quantization_config.h"

namespace quire::checkpoint {

struct FolderFiles {
  boost::json::object config;
  std::optional<QuantizationConfig> quantization;
  boost::json::object generation_config;  // empty when there is none, as all below
  std::string tokenizer_json;
  std::string sentencepiece_model;
  boost::json::object tokenizer_config;
  std::string chat_template;
  SentenceFiles sentence;
};

// Errors: not_found without config.json; unimplemented for weights quantised in a way that is not read; data_loss.
Result<FolderFiles> read_folder_files(const ModelDirectory& directory);

// A checkpoint all but its tensors.
class FolderCheckpoint : public Checkpoint {
 public:
  explicit FolderCheckpoint(FolderFiles files) : files_(std::move(files)) {}

  Format format() const override { return Format::kSafetensors; }
  const boost::json::object& config() const override { return files_.config; }
  const QuantizationConfig* quantization() const override {
    return files_.quantization ? &*files_.quantization : nullptr;
  }
  const boost::json::object& generation_config() const override { return files_.generation_config; }
  std::optional<Vocabulary> vocabulary() const override { return std::nullopt; }
  std::string tokenizer_json() const override { return files_.tokenizer_json; }
  std::string sentencepiece_model() const override { return files_.sentencepiece_model; }
  const boost::json::object& tokenizer_config() const override { return files_.tokenizer_config; }
  std::string chat_template() const override { return files_.chat_template; }
  const SentenceFiles& sentence_files() const override { return files_.sentence; }

 private:
  FolderFiles files_;
};

}  // namespace quire::checkpoint
