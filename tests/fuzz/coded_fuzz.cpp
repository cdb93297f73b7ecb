// config.json and, behind a NUL, a safetensors file: a matrix "a" of 32 by 64 in the codes of any layout that the
// configuration names, planned, loaded, read as numbers and multiplied by.
#include <map>

#include <boost/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/json_file.h"
#include "checkpoint/quantization_config.h"
#include "checkpoint/safetensors_file.h"
#include "nn/linear.h"
#include "ops/reference/reference_backend.h"
#include "tests/fuzz/fuzz.h"

namespace {

namespace json = boost::json;
using namespace quire;

class FileCheckpoint final : public checkpoint::Checkpoint {
 public:
  FileCheckpoint(json::object config, checkpoint::QuantizationConfig quantization,
                 const checkpoint::SafetensorsFile& file)
      : config_(std::move(config)), quantization_(std::move(quantization)) {
    for (const checkpoint::SafetensorsTensor& tensor : file.tensors)
      tensors_.push_back({tensor.name, tensor.name, tensor.view});
  }

  checkpoint::Format format() const override { return checkpoint::Format::kSafetensors; }
  const json::object& config() const override { return config_; }
  const checkpoint::QuantizationConfig* quantization() const override { return &quantization_; }
  const json::object& generation_config() const override { return empty_; }
  std::span<const checkpoint::CheckpointTensor> tensors() const override { return tensors_; }
  const checkpoint::CheckpointTensor* find(std::string_view name) const override {
    for (const checkpoint::CheckpointTensor& tensor : tensors_) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  std::optional<Vocabulary> vocabulary() const override { return std::nullopt; }
  std::string tokenizer_json() const override { return {}; }
  const json::object& tokenizer_config() const override { return empty_; }
  std::string chat_template() const override { return {}; }
  int64_t total_tensor_bytes() const override { return 0; }
  std::string dtype_summary() const override { return "I32"; }

 private:
  json::object config_, empty_;
  checkpoint::QuantizationConfig quantization_;
  std::vector<checkpoint::CheckpointTensor> tensors_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kRows = 32;
  constexpr int64_t kColumns = 64;
  const fuzz::CpuLimit limit;
  fuzz::Input input(data, size);
  auto config = checkpoint::parse_json_object(input.until(std::string_view("\0", 1)), {.most_values = 10'000});
  const fuzz::AlignedCopy copy(input.rest());
  const auto file = checkpoint::SafetensorsFile::parse(copy.bytes());
  if (!config.ok() || !file.ok()) return 0;
  auto quantization = checkpoint::QuantizationConfig::parse(*config);
  if (!quantization.ok()) {
    fuzz::check_error(quantization.status());
    return 0;
  }
  if (!*quantization) return 0;
  const FileCheckpoint checkpoint(*std::move(config), **std::move(quantization), *file);
  const std::unique_ptr<ops::Backend> backend = ops::make_reference_backend();
  nn::Loader plan(nn::Loader::Mode::kPlan, checkpoint, *backend);
  nn::Loader loader(nn::Loader::Mode::kLoad, checkpoint, *backend);
  const nn::Linear planned(plan, "a", kColumns, kRows);
  const nn::Linear linear(loader, "a", kColumns, kRows);
  if (const Status status = loader.finish({}); !status.ok()) {
    fuzz::check_error(status);
    return 0;
  }
  QUIRE_CHECK(plan.bytes() == loader.bytes());
  const std::vector<float> numbers = loader.floats(loader.weight({"a.weight", {kRows, kColumns}}));
  // 8-bit floats are not read as numbers.
  if (const Status status = loader.finish({}); !status.ok()) {
    fuzz::check_error(status);
    return 0;
  }
  QUIRE_CHECK(numbers.size() == kRows * kColumns);
  const std::vector<float> x(kColumns, 1.0f);
  std::vector<float> out(kRows);
  float nothing = 0;
  const nn::Batch none;
  nn::Workspace workspace(&nothing, 0);
  linear({.backend = *backend, .batch = none, .workspace = workspace}, ops::ConstView(x.data(), 1, kColumns),
         ops::View(out.data(), 1, kRows));
  fuzz::touch(out.data(), kRows * static_cast<int64_t>(sizeof(float)));
  return 0;
}
