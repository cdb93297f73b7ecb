#include <utility>

#include "checkpoint/gguf_architecture.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_vocabulary.h"
#include "checkpoint/open_formats.h"
#include "checkpoint/tensor_list.h"

namespace quire::checkpoint {
namespace {

class GgufCheckpoint final : public Checkpoint {
 public:
  GgufCheckpoint(std::shared_ptr<const MappedFile> file, TensorList tensors, GgufConfig config,
                 std::optional<Vocabulary> vocabulary, std::string chat_template)
      : file_(std::move(file)),
        tensors_(std::move(tensors)),
        config_(std::move(config)),
        vocabulary_(std::move(vocabulary)),
        chat_template_(std::move(chat_template)) {}

  Format format() const override { return Format::kGguf; }
  const boost::json::object& config() const override { return config_.config; }
  const boost::json::object& generation_config() const override { return config_.generation_config; }
  std::span<const CheckpointTensor> tensors() const override { return tensors_.all(); }
  const CheckpointTensor* find(std::string_view name) const override { return tensors_.find(name); }
  std::optional<Vocabulary> vocabulary() const override { return vocabulary_; }
  std::string tokenizer_json() const override { return {}; }
  const boost::json::object& tokenizer_config() const override { return tokenizer_config_; }
  std::string chat_template() const override { return chat_template_; }
  int64_t total_tensor_bytes() const override { return tensors_.total_bytes(); }
  std::string dtype_summary() const override { return tensors_.dtype_summary(); }

 private:
  std::shared_ptr<const MappedFile> file_;  // the tensors' memory
  TensorList tensors_;
  GgufConfig config_;
  std::optional<Vocabulary> vocabulary_;
  boost::json::object tokenizer_config_;  // empty: GGUF has none
  std::string chat_template_;
};

// A model in several files names its number of parts.
Status refuse_split(const GgufMetadata& metadata) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> parts, metadata.integer("split.count"));
  if (!parts || *parts <= 1) return {};
  return unimplemented("one of {} parts of a model (metadata \"split.count\"); merge them into one file", *parts);
}

Result<TensorList> named_tensors(const GgufFile& file, const GgufArchitecture* architecture) {
  std::vector<CheckpointTensor> tensors;
  tensors.reserve(file.tensors.size());
  for (const GgufTensor& tensor : file.tensors) {
    const std::string stored(tensor.name);
    tensors.push_back(
        {architecture == nullptr ? stored : hugging_face_name(*architecture, stored), stored, tensor.view});
  }
  return TensorList::make(std::move(tensors));
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> open_gguf(std::shared_ptr<const MappedFile> mapped) {
  QUIRE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::parse(mapped->bytes()));
  const GgufMetadata& metadata = file.metadata;
  QUIRE_RETURN_IF_ERROR(refuse_split(metadata));
  QUIRE_ASSIGN_OR_RETURN(const auto name, metadata.text("general.architecture"));
  if (!name || name->empty()) return data_loss("metadata \"general.architecture\" is missing, expected a string");
  const GgufArchitecture* architecture = find_gguf_architecture(*name);
  QUIRE_ASSIGN_OR_RETURN(TensorList tensors, named_tensors(file, architecture));
  QUIRE_ASSIGN_OR_RETURN(GgufConfig config, read_gguf_config(metadata, *name, architecture, tensors));
  QUIRE_ASSIGN_OR_RETURN(std::optional<Vocabulary> vocabulary, read_gguf_vocabulary(metadata));
  QUIRE_ASSIGN_OR_RETURN(const auto chat_template, metadata.text("tokenizer.chat_template"));
  return std::shared_ptr<const Checkpoint>(std::make_shared<GgufCheckpoint>(std::move(mapped), std::move(tensors),
                                                                            std::move(config), std::move(vocabulary),
                                                                            std::string(chat_template.value_or(""))));
}

}  // namespace quire::checkpoint
