#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "checkpoint/directory_files.h"
#include "checkpoint/folder_checkpoint.h"
#include "checkpoint/json_file.h"
#include "checkpoint/open_formats.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/tensor_list.h"
#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

namespace json = boost::json;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr size_t kMostShardEntries = 1'000'000;  // of all shards together

// One safetensors file and the memory that its views show.
struct Shard {
  std::shared_ptr<const MappedFile> mapped;
  SafetensorsFile file;
};

struct Weights {
  std::vector<Shard> shards;
  TensorList tensors;
};

class DirectoryCheckpoint final : public FolderCheckpoint {
 public:
  DirectoryCheckpoint(Weights weights, FolderFiles files)
      : FolderCheckpoint(std::move(files)), weights_(std::move(weights)) {}

  std::span<const CheckpointTensor> tensors() const override { return weights_.tensors.all(); }
  const CheckpointTensor* find(std::string_view name) const override { return weights_.tensors.find(name); }
  int64_t total_tensor_bytes() const override { return weights_.tensors.total_bytes(); }
  std::string dtype_summary() const override { return weights_.tensors.dtype_summary(); }

 private:
  Weights weights_;
};

Result<Shard> open_shard(const ModelDirectory& directory, std::string_view name) {
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path path, directory.resolve(name));
  Shard shard;
  QUIRE_ASSIGN_OR_RETURN(shard.mapped, MappedFile::open(path));
  auto file = SafetensorsFile::parse(shard.mapped->bytes());
  if (!file.ok()) {
    return file.status().with_prefix(fmt::format("{}: ", (directory.path() / std::string(name)).string()));
  }
  shard.file = std::move(*file);
  return shard;
}

Result<Weights> gather(std::vector<Shard> shards) {
  std::vector<CheckpointTensor> tensors;
  for (const Shard& shard : shards) {
    for (const SafetensorsTensor& tensor : shard.file.tensors) {
      tensors.push_back({tensor.name, tensor.name, tensor.view});
    }
  }
  Weights weights;
  QUIRE_ASSIGN_OR_RETURN(weights.tensors, TensorList::make(std::move(tensors)));
  weights.shards = std::move(shards);
  return weights;
}

Result<Weights> open_single(const ModelDirectory& directory, std::string_view name) {
  std::vector<Shard> shards(1);
  QUIRE_ASSIGN_OR_RETURN(shards[0], open_shard(directory, name));
  return gather(std::move(shards));
}

using ShardMap = std::map<std::string, std::vector<std::string>, std::less<>>;  // shard -> its tensors

Result<ShardMap> read_weight_map(const json::object& index) {
  const json::value* value = index.if_contains("weight_map");
  const json::object* map = value == nullptr ? nullptr : value->if_object();
  if (map == nullptr || map->empty()) {
    return data_loss("weight_map is {}, expected an object of tensor names and file names", value == nullptr ? "missing"
                                                                                            : map == nullptr
                                                                                                ? described(*value)
                                                                                                : "empty");
  }
  if (map->size() > kMostShardEntries) {
    return data_loss("weight_map has {} entries, expected at most {}", map->size(), kMostShardEntries);
  }
  ShardMap shards;
  for (const auto& [tensor, shard] : *map) {
    if (!shard.is_string()) {
      return data_loss("weight_map[{}] is {}, expected a file name", in_quotes(tensor), described(shard));
    }
    const std::string_view name = shard.get_string();
    if (!name.ends_with(".safetensors")) {
      return data_loss("weight_map[{}] is {}, expected the name of a .safetensors file", in_quotes(tensor),
                       in_quotes(name));
    }
    shards[std::string(name)].emplace_back(tensor);
  }
  return shards;
}

// The shard holds the tensors that the index places in it and no others.
Status check_shard(const Shard& shard, std::string_view name, std::vector<std::string> expected) {
  std::vector<std::string> found;
  for (const SafetensorsTensor& tensor : shard.file.tensors) found.push_back(tensor.name);
  std::sort(found.begin(), found.end());
  std::sort(expected.begin(), expected.end());
  const auto [wanted, present] = std::mismatch(expected.begin(), expected.end(), found.begin(), found.end());
  if (wanted == expected.end() && present == found.end()) return {};
  if (present == found.end() || (wanted != expected.end() && *wanted < *present)) {
    return data_loss("weight_map places tensor {} in {}, which does not hold it", in_quotes(*wanted), in_quotes(name));
  }
  return data_loss("{} holds tensor {}, which weight_map does not place in it", in_quotes(name), in_quotes(*present));
}

// Only a warning: every tensor has been checked against the index and its shard, and indexes written by hand or by
// tools that merge and convert checkpoints are known to carry the size of another.
Status check_total_size(const json::object& index, std::string_view where, int64_t found) {
  const json::value* metadata = index.if_contains("metadata");
  if (metadata == nullptr || metadata->is_null()) return {};
  if (!metadata->is_object()) return data_loss("metadata is {}, expected an object", described(*metadata));
  const json::value* total = metadata->get_object().if_contains("total_size");
  if (total == nullptr || total->is_null()) return {};
  if (!total->is_number()) return data_loss("metadata.total_size is {}, expected a number", described(*total));
  if (total->to_number<double>() != static_cast<double>(found)) {
    log_warning("{}metadata.total_size is {}, but the tensors of all shards have {} bytes", where, described(*total),
                found);
  }
  return {};
}

Result<Weights> open_sharded(const ModelDirectory& directory) {
  const std::string where = (directory.path() / kIndexFile).string() + ": ";
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path path, directory.resolve(kIndexFile));
  QUIRE_ASSIGN_OR_RETURN(const json::object index, read_json_object(path, {.duplicate_keys = DuplicateKeys::kRefuse}));
  const auto weight_map = read_weight_map(index);
  if (!weight_map.ok()) return weight_map.status().with_prefix(where);
  std::vector<Shard> shards;
  for (const auto& [name, tensors] : *weight_map) {
    QUIRE_ASSIGN_OR_RETURN(Shard shard, open_shard(directory, name));
    QUIRE_RETURN_IF_ERROR(check_shard(shard, name, tensors).with_prefix(where));
    shards.push_back(std::move(shard));
  }
  QUIRE_ASSIGN_OR_RETURN(Weights weights, gather(std::move(shards)));
  QUIRE_RETURN_IF_ERROR(check_total_size(index, where, weights.tensors.total_bytes()).with_prefix(where));
  return weights;
}

// Weights in a form that we do not read, or none at all.
Status no_weights(const ModelDirectory& directory) {
  for (const std::string& name : directory.names()) {
    if (is_pickle_name(name)) return pickle_refused(directory.path() / name);
  }
  for (const std::string& name : directory.names()) {
    if (name.ends_with(".gguf")) {
      return invalid_argument("{}: holds {}; give the path of that file", directory.path().string(), in_quotes(name));
    }
  }
  if (!directory.has("config.json")) {
    return not_found("{}: is no model's directory: there is no config.json, and there is neither {} nor {}",
                     directory.path().string(), kSingleFile, kIndexFile);
  }
  return not_found("{}: there is neither {} nor {}", directory.path().string(), kSingleFile, kIndexFile);
}

Result<Weights> open_weights(const ModelDirectory& directory) {
  if (directory.has(kSingleFile)) return open_single(directory, kSingleFile);
  if (directory.has(kIndexFile)) return open_sharded(directory);
  std::vector<std::string_view> others;
  for (const std::string& name : directory.names()) {
    if (name.ends_with(".safetensors")) others.push_back(name);
  }
  if (others.empty()) return no_weights(directory);
  if (others.size() > 1) {
    return not_found("{}: there are {} safetensors files but no {} to say which tensor lies where",
                     directory.path().string(), others.size(), kIndexFile);
  }
  return open_single(directory, others.front());
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> open_directory(const std::filesystem::path& path) {
  QUIRE_ASSIGN_OR_RETURN(const ModelDirectory directory, ModelDirectory::open(path));
  QUIRE_ASSIGN_OR_RETURN(Weights weights, open_weights(directory));
  QUIRE_ASSIGN_OR_RETURN(FolderFiles files, read_folder_files(directory));
  return std::shared_ptr<const Checkpoint>(std::make_shared<DirectoryCheckpoint>(std::move(weights), std::move(files)));
}

}  // namespace quire::checkpoint
