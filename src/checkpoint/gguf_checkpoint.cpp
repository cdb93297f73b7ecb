#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/gguf_architecture.h"
#include "checkpoint/gguf_description.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_vocabulary.h"
#include "checkpoint/open_formats.h"
#include "checkpoint/tensor_list.h"

namespace quire::checkpoint {
namespace {

class GgufCheckpoint final : public Checkpoint {
 public:
  GgufCheckpoint(std::vector<std::shared_ptr<const MappedFile>> files, TensorList tensors, GgufDescription description,
                 boost::json::object generation_config, std::optional<Vocabulary> vocabulary, std::string chat_template)
      : files_(std::move(files)),
        tensors_(std::move(tensors)),
        description_(std::move(description)),
        generation_config_(std::move(generation_config)),
        vocabulary_(std::move(vocabulary)),
        chat_template_(std::move(chat_template)) {}

  Format format() const override { return Format::kGguf; }
  const boost::json::object& config() const override { return config_; }
  const GgufDescription* gguf() const override { return &description_; }
  const boost::json::object& generation_config() const override { return generation_config_; }
  std::span<const CheckpointTensor> tensors() const override { return tensors_.all(); }
  const CheckpointTensor* find(std::string_view name) const override { return tensors_.find(name); }
  std::optional<Vocabulary> vocabulary() const override { return vocabulary_; }
  std::string tokenizer_json() const override { return {}; }
  const boost::json::object& tokenizer_config() const override { return tokenizer_config_; }
  std::string chat_template() const override { return chat_template_; }
  int64_t total_tensor_bytes() const override { return tensors_.total_bytes(); }
  std::string dtype_summary() const override { return tensors_.dtype_summary(); }

 private:
  std::vector<std::shared_ptr<const MappedFile>> files_;  // the tensors' memory
  TensorList tensors_;
  GgufDescription description_;
  boost::json::object config_;  // empty, as tokenizer_config_: GGUF has none
  boost::json::object generation_config_;
  std::optional<Vocabulary> vocabulary_;
  boost::json::object tokenizer_config_;
  std::string chat_template_;
};

// The files of a model and its tensors. The first has the metadata.
struct Parts {
  std::vector<std::shared_ptr<const MappedFile>> files;
  std::vector<GgufTensor> tensors;
};

constexpr int64_t kMostParts = 9999;

std::string part_ending(int64_t number, int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number, count);
}

// `count` parts by the metadata; this is number `number` of them, from 0.
Status check_part(const GgufMetadata& metadata, int64_t number, int64_t count) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> found_count, metadata.integer("split.count"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> found_number, metadata.integer("split.no"));
  if (found_count == count && found_number == number) return {};
  return data_loss("metadata says part {} of {} (\"split.no\" from 0, \"split.count\"), expected part {} of {}",
                   found_number.value_or(-1), found_count.value_or(-1), number, count);
}

// The other parts of a model in several files, which lie beside the first and are named as it is.
Status add_other_parts(const GgufMetadata& first, const std::filesystem::path& path, int64_t count, Parts& parts) {
  if (count > kMostParts) return data_loss("metadata \"split.count\" is {}, expected at most {}", count, kMostParts);
  const std::string name = path.filename().string();
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> number, first.integer("split.no"));
  if (number && (*number < 0 || *number >= count)) {
    return data_loss("metadata \"split.no\" is {}, expected 0 to {} (\"split.count\" is {})", *number, count - 1,
                     count);
  }
  if (number.value_or(0) != 0) {
    return invalid_argument("part {} of {} of a model; give the first, whose name ends with {}", *number + 1, count,
                            part_ending(1, count));
  }
  const std::string ending = part_ending(1, count);
  if (!name.ends_with(ending)) {
    return invalid_argument("the first of {} parts of a model; its name must end with {}, so that the others are found",
                            count, ending);
  }
  const std::string stem = name.substr(0, name.size() - ending.size());
  for (int64_t i = 1; i < count; ++i) {
    const std::filesystem::path part = path.parent_path() / (stem + part_ending(i + 1, count));
    QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> mapped, MappedFile::open(part));
    auto file = GgufFile::parse(mapped->bytes());
    Status status = file.ok() ? check_part(file->metadata, i, count) : file.status();
    if (!status.ok()) return std::move(status).with_prefix(part.filename().string() + ": ");
    parts.files.push_back(std::move(mapped));
    parts.tensors.insert(parts.tensors.end(), file->tensors.begin(), file->tensors.end());
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> tensors, first.integer("split.tensors.count"));
  if (tensors && *tensors != static_cast<int64_t>(parts.tensors.size())) {
    return data_loss("metadata \"split.tensors.count\" is {}, but the {} parts have {} tensors", *tensors, count,
                     parts.tensors.size());
  }
  return {};
}

Result<TensorList> named_tensors(std::span<const GgufTensor> stored_tensors, const GgufArchitecture* architecture) {
  std::vector<CheckpointTensor> tensors;
  tensors.reserve(stored_tensors.size());
  for (const GgufTensor& tensor : stored_tensors) {
    const std::string stored(tensor.name);
    tensors.push_back(
        {architecture == nullptr ? stored : hugging_face_name(*architecture, stored), stored, tensor.view});
  }
  return TensorList::make(std::move(tensors));
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> open_gguf(std::shared_ptr<const MappedFile> mapped,
                                                    const std::filesystem::path& path) {
  QUIRE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::parse(mapped->bytes()));
  const GgufMetadata& metadata = file.metadata;
  Parts parts{.files = {std::move(mapped)}, .tensors = file.tensors};
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> count, metadata.integer("split.count"));
  if (count && *count > 1) QUIRE_RETURN_IF_ERROR(add_other_parts(metadata, path, *count, parts));
  QUIRE_ASSIGN_OR_RETURN(const auto name, metadata.text("general.architecture"));
  if (!name || name->empty()) return data_loss("metadata \"general.architecture\" is missing, expected a string");
  const GgufArchitecture* architecture = find_gguf_architecture(*name);
  QUIRE_ASSIGN_OR_RETURN(TensorList tensors, named_tensors(parts.tensors, architecture));
  QUIRE_ASSIGN_OR_RETURN(GgufDescription description, describe_gguf(metadata, *name, architecture));
  QUIRE_ASSIGN_OR_RETURN(boost::json::object generation_config, read_gguf_generation_config(metadata));
  QUIRE_ASSIGN_OR_RETURN(std::optional<Vocabulary> vocabulary, read_gguf_vocabulary(metadata));
  QUIRE_ASSIGN_OR_RETURN(const auto chat_template, metadata.text("tokenizer.chat_template"));
  return std::shared_ptr<const Checkpoint>(std::make_shared<GgufCheckpoint>(
      std::move(parts.files), std::move(tensors), std::move(description), std::move(generation_config),
      std::move(vocabulary), std::string(chat_template.value_or(""))));
}

}  // namespace quire::checkpoint
