// Random weights of whatever shape a model declares: what a model costs can be measured without its files.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include "base/check.h"
#include "checkpoint/folder_checkpoint.h"
#include "checkpoint/open_formats.h"
#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

// One piece of random numbers stands behind all tensors, again and again, so that 140 GB of weights take 16 MB.
class RandomNumbers {
 public:
  static Result<std::unique_ptr<RandomNumbers>> create(DType dtype) {
    auto numbers = std::unique_ptr<RandomNumbers>(new RandomNumbers());
    numbers->file_ = memfd_create("quire-dummy", MFD_CLOEXEC);
    if (numbers->file_ < 0 || ftruncate(numbers->file_, kPiece) != 0) return failed();
    void* memory = mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED, numbers->file_, 0);
    if (memory == MAP_FAILED) return failed();
    fill(dtype, memory);
    munmap(memory, kPiece);
    return numbers;
  }
  ~RandomNumbers() {
    for (const auto& [memory, bytes] : views_) munmap(memory, bytes);
    if (file_ >= 0) close(file_);
  }
  RandomNumbers(const RandomNumbers&) = delete;
  RandomNumbers& operator=(const RandomNumbers&) = delete;

  // nullptr: no room in the address space.
  const void* view(size_t bytes) {
    const size_t whole = std::max<size_t>((bytes + kPiece - 1) / kPiece, 1) * kPiece;
    void* memory = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    views_.emplace_back(memory, whole);
    for (size_t at = 0; at < whole; at += kPiece) {
      void* piece = static_cast<uint8_t*>(memory) + at;
      if (mmap(piece, kPiece, PROT_READ, MAP_SHARED | MAP_FIXED, file_, 0) == MAP_FAILED) return nullptr;
    }
    return memory;
  }

 private:
  static constexpr size_t kPiece = size_t{16} << 20;

  RandomNumbers() = default;
  static Status failed() { return resource_exhausted("no memory for random weights: {}", std::strerror(errno)); }

  // About as large as trained weights are, so that nothing grows over or fades on its way through many layers.
  static void fill(DType dtype, void* memory) {
    std::mt19937 random(0);
    std::uniform_real_distribution<float> number(-0.03f, 0.03f);
    const size_t size = static_cast<size_t>(info(dtype).block_bytes);
    for (size_t at = 0; at < kPiece; at += size) {
      const float value = number(random);
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      if (dtype == DType::kBF16) bits >>= 16;
      if (dtype == DType::kF16) bits = half(bits);
      std::memcpy(static_cast<uint8_t*>(memory) + at, &bits, size);
    }
  }
  // Of a float of at most 1: its fraction cut short; below the smallest normal half nothing.
  static uint32_t half(uint32_t bits) {
    const uint32_t exponent = bits >> 23 & 0xff;
    if (exponent < 113) return bits >> 16 & 0x8000;
    return (bits >> 16 & 0x8000) | (exponent - 112) << 10 | (bits >> 13 & 0x3ff);
  }

  int file_ = -1;
  std::vector<std::pair<void*, size_t>> views_;
};

// Whether random weights are made in the codes that the configuration names: AWQ's and GPTQ's, whose words may be any.
bool has_random_codes(const std::optional<QuantizationConfig>& quantization) {
  return quantization && (quantization->method == QuantMethod::kAwq || quantization->method == QuantMethod::kGptq);
}

// The matrices that checkpoints keep in codes, by their names.
bool is_of_codes(std::string_view name) {
  return name.find("_proj.") != std::string_view::npos || name.find(".experts.") != std::string_view::npos;
}

class DummyCheckpoint final : public FolderCheckpoint {
 public:
  DummyCheckpoint(FolderFiles files, DType dtype, std::unique_ptr<RandomNumbers> numbers)
      : FolderCheckpoint(std::move(files)), dtype_(dtype), numbers_(std::move(numbers)) {}

  std::span<const CheckpointTensor> tensors() const override { return {}; }
  // Every name is one of a tensor; of which shape is known when a model has declared it.
  const CheckpointTensor* find(std::string_view name) const override {
    const std::lock_guard lock(mutex_);
    if (absent_.contains(name)) return nullptr;
    const bool coded = quantization() != nullptr && is_of_codes(name);
    if (name.ends_with(coded ? ".weight" : ".qweight")) return nullptr;
    const auto known = made_.find(name);
    return known != made_.end() ? &known->second : &undeclared_;
  }
  const CheckpointTensor* declared(const ParameterSpec& spec) const override {
    const std::lock_guard lock(mutex_);
    if (spec.optional) absent_.insert(spec.name);
    if (absent_.contains(spec.name)) return nullptr;
    const auto known = made_.find(spec.name);
    if (known != made_.end()) return known->second.view.shape == spec.shape ? &known->second : nullptr;
    const bool is_words = spec.name.ends_with(".qweight") || spec.name.ends_with(".qzeros");
    TensorView view{nullptr, is_words ? DType::kI32 : dtype_, spec.shape};
    view.data = numbers_->view(static_cast<size_t>(view.bytes()));
    if (view.data == nullptr) return nullptr;
    bytes_ += view.bytes();
    return &made_.emplace(spec.name, CheckpointTensor{spec.name, spec.name, view}).first->second;
  }
  int64_t total_tensor_bytes() const override {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  std::string dtype_summary() const override { return std::string(name(dtype_)); }

 private:
  const DType dtype_;
  const CheckpointTensor undeclared_{"", "", {nullptr, dtype_, {}}};
  mutable std::mutex mutex_;  // of all below: a checkpoint is read-only to those who share it
  mutable std::map<std::string, CheckpointTensor, std::less<>> made_;
  mutable std::set<std::string, std::less<>> absent_;  // what a model does not need
  mutable int64_t bytes_ = 0;
  const std::unique_ptr<RandomNumbers> numbers_;
};

// config.json's "dtype", or "torch_dtype" as it was called; bfloat16 where it says nothing.
Result<DType> weight_dtype(const boost::json::object& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const boost::json::value* value = config.if_contains(key);
    if (value == nullptr || value->is_null()) continue;
    const std::string_view text = value->is_string() ? std::string_view(value->get_string()) : std::string_view();
    if (text == "bfloat16") return DType::kBF16;
    if (text == "float16") return DType::kF16;
    if (text == "float32") return DType::kF32;
    return unimplemented("config.json: {} is {}; random weights are made in bfloat16, float16 or float32", key,
                         in_quotes(text));
  }
  return DType::kBF16;
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> open_dummy(const std::filesystem::path& path) {
  const bool names_file = path.filename() == "config.json";
  if (!names_file && std::filesystem::is_regular_file(path)) {
    return invalid_argument(
        "{}: random weights (--load-format dummy) are made for a config.json, or a directory that holds one; this is a "
        "file of another name",
        path.string());
  }
  QUIRE_ASSIGN_OR_RETURN(const ModelDirectory directory,
                         ModelDirectory::open(names_file ? path.parent_path() / "." : path));
  QUIRE_ASSIGN_OR_RETURN(FolderFiles files, read_folder_files(directory));
  if (files.quantization && !has_random_codes(files.quantization)) {
    return unimplemented(
        "{}: random weights are not made with a quantization_config of {}, only of awq and gptq; leave it out, and "
        "give --quantization fp8 for matrices of 8-bit floats",
        path.string(), name(files.quantization->method));
  }
  QUIRE_ASSIGN_OR_RETURN(const DType dtype, weight_dtype(files.config));
  QUIRE_ASSIGN_OR_RETURN(auto numbers, RandomNumbers::create(dtype));
  return std::shared_ptr<const Checkpoint>(
      std::make_shared<DummyCheckpoint>(std::move(files), dtype, std::move(numbers)));
}

}  // namespace quire::checkpoint
