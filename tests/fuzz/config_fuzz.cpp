// config.json and, behind a NUL, generation_config.json: through the registry to a family's configuration and the plan
// of its model, which may cost no memory that the files do not have.
#include <charconv>
#include <map>

#include <boost/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/json_file.h"
#include "models/registry.h"
#include "ops/reference/reference_backend.h"
#include "runner/memory_planner.h"
#include "tests/fuzz/fuzz.h"

namespace {

namespace json = boost::json;
using namespace quire;

// A checkpoint that has whatever a model asks for, once it has been told the shape; nobody may read its data.
class FakeCheckpoint final : public checkpoint::Checkpoint {
 public:
  FakeCheckpoint(json::object config, json::object generation)
      : config_(std::move(config)), generation_(std::move(generation)) {}

  checkpoint::Format format() const override { return checkpoint::Format::kSafetensors; }
  const json::object& config() const override { return config_; }
  const json::object& generation_config() const override { return generation_; }
  std::span<const checkpoint::CheckpointTensor> tensors() const override { return list_; }
  const checkpoint::CheckpointTensor* find(std::string_view name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }
  std::optional<Vocabulary> vocabulary() const override { return std::nullopt; }
  std::string tokenizer_json() const override { return {}; }
  const json::object& tokenizer_config() const override { return empty_; }
  std::string chat_template() const override { return {}; }
  int64_t total_tensor_bytes() const override { return 0; }
  std::string dtype_summary() const override { return "F32"; }

  // Takes the tensors that an error of match_parameters() misses or finds wrong; false where there are none.
  bool learn(std::string_view error) {
    bool learnt = false;
    if (const size_t at = error.find(" missing: "); at != std::string_view::npos) {
      std::string_view names = error.substr(at + 10);
      names = names.substr(0, std::min(names.find(';'), names.find(" and ")));
      while (!names.empty()) {
        const std::string_view name = names.substr(0, names.find(", "));
        names.remove_prefix(std::min(name.size() + 2, names.size()));
        learnt |= add(name, {1});
      }
    }
    for (size_t at; (at = error.find(" (found ")) != std::string_view::npos;) {
      const std::string_view before = error.substr(0, at);
      const size_t begin = before.find_last_of(' ');
      const std::string_view name = before.substr(begin == std::string_view::npos ? 0 : begin + 1);
      error.remove_prefix(error.find("expected [", at) + 10);
      Shape shape;
      while (shape.rank() < Shape::kMaxRank) {
        int64_t dim = 0;
        const auto [end, failed] = std::from_chars(error.data(), error.data() + error.size(), dim);
        if (failed != std::errc()) break;
        shape.push_back(dim);
        error.remove_prefix(static_cast<size_t>(end - error.data()));
        if (!error.starts_with(", ")) break;
        error.remove_prefix(2);
      }
      learnt |= add(name, shape);
    }
    return learnt;
  }
  bool too_large() const { return bytes_ > 1e15; }

 private:
  // The tensor, and those of the other first layers and experts, which are told one at a time.
  bool add(std::string_view name, const Shape& shape) {
    bool added = add_one(name, shape);
    for (const auto& [where, count] : {std::pair{".experts.", 8}, std::pair{"layers.", 2}}) {
      const size_t at = name.find(where);
      if (at == std::string_view::npos) continue;
      const size_t begin = at + std::string_view(where).size();
      const std::string_view after = name.substr(std::min(name.find('.', begin), name.size()));
      for (int i = 0; i < count; ++i) added |= add_one(fmt::format("{}{}{}", name.substr(0, begin), i, after), shape);
    }
    return added;
  }
  bool add_one(std::string_view name, const Shape& shape) {
    checkpoint::CheckpointTensor& tensor = tensors_[std::string(name)];
    if (tensor.view.data != nullptr && tensor.view.shape == shape) return false;
    static const float kNumber = 0;
    tensor = {std::string(name), std::string(name), {.data = &kNumber, .dtype = DType::kF32, .shape = shape}};
    double size = sizeof(float);
    for (int i = 0; i < shape.rank(); ++i) size *= static_cast<double>(shape[i]);
    bytes_ += size;
    return true;
  }

  json::object config_, generation_, empty_;
  std::map<std::string, checkpoint::CheckpointTensor, std::less<>> tensors_;
  std::vector<checkpoint::CheckpointTensor> list_;  // empty: nothing that a model does not know
  double bytes_ = 0;
};

void check_config(const ModelConfig& config) {
  QUIRE_CHECK(config.num_layers > 0 && config.hidden_size > 0 && config.vocab_size > 0 && config.max_position > 0);
  QUIRE_CHECK(config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads == 0 && config.head_dim > 0);
  QUIRE_CHECK(config.layer_windows.empty() || config.layer_windows.size() == static_cast<size_t>(config.num_layers));
  for (const TokenId id : config.eos_ids) QUIRE_CHECK(id >= 0 && id < config.vocab_size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::CpuLimit limit;
  fuzz::Input input(data, size);
  const auto config = checkpoint::parse_json_object(input.until(std::string_view("\0", 1)), {});
  auto generation = checkpoint::parse_json_object(input.rest(), {});
  if (!config.ok()) {
    fuzz::check_error(config.status());
    return 0;
  }
  FakeCheckpoint checkpoint(*config, generation.ok() ? *generation : json::object());
  static const std::unique_ptr<ops::Backend> backend = ops::make_reference_backend();
  for (int round = 0; round < 12; ++round) {
    const auto planned = runner::plan_model({}, checkpoint, *backend, int64_t{1} << 40);
    if (planned.ok()) {
      check_config(planned->config);
      QUIRE_CHECK(planned->memory.weight_bytes > 0 && planned->memory.block_bytes > 0);
      return 0;
    }
    fuzz::check_error(planned.status());
    if (!checkpoint.learn(planned.status().message()) || checkpoint.too_large()) return 0;
  }
  return 0;
}
