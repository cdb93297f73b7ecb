// --kv-cache-dtype from its name to the logits: the plan's bytes, the storage's bytes, what rounding costs.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/runner/dry_backend.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

using testing::HasSubstr;

struct Choice {
  std::string name;
  DType dtype;
  int64_t llama_8b_bytes;  // a token: 2 x 32 layers x 8 kv heads x (128 numbers, and a scale)
  double tolerance;        // mean difference of a tiny model's logits, which lie between -10 and 13
};
const std::vector<Choice> kChoices = {
    {"auto", DType::kF32, 262144, 0},         {"float32", DType::kF32, 262144, 0},
    {"float16", DType::kF16, 131072, 8e-3},   {"bfloat16", DType::kBF16, 131072, 0.1},
    {"fp8", DType::kF8E4M3, 65536, 1.0},      {"fp8_e4m3", DType::kF8E4M3, 65536, 1.0},
    {"fp8_e5m2", DType::kF8E5M2, 65536, 2.0}, {"int8", DType::kI8, 67584, 0.2}};

// Counts the bytes that are held.
class CountingAllocator final : public Allocator {
 public:
  explicit CountingAllocator(Allocator& inner) : inner_(inner) {}
  Device device() const override { return inner_.device(); }
  void* allocate(size_t bytes) override {
    held_ += static_cast<int64_t>(bytes);
    return inner_.allocate(bytes);
  }
  void release(void* memory, size_t bytes) override {
    held_ -= static_cast<int64_t>(bytes);
    inner_.release(memory, bytes);
  }
  int64_t held() const { return held_; }

 private:
  Allocator& inner_;
  int64_t held_ = 0;
};

// A backend whose memory is counted.
class CountingBackend final : public DryBackend {
 public:
  CountingBackend(ops::Backend& real, Allocator& allocator) : DryBackend(real), counted_(allocator) {}
  Allocator& allocator() override { return counted_; }

 private:
  Allocator& counted_;
};

class KvDType : public testing::TestWithParam<Choice> {};

TEST_P(KvDType, TakesTheBytesOfTheArithmetic) {
  const DType dtype = kv_dtype_of(parse_choice<KvCacheDType>(GetParam().name).value());
  EXPECT_EQ(dtype, GetParam().dtype);
  const nn::KvLayerSpec layer{.num_kv_heads = 8, .key_dim = 128, .value_dim = 128, .dtype = dtype};
  const auto llama = make_kv_layout(std::vector(32, layer), 16);
  ASSERT_TRUE(llama.ok()) << llama.status().message();
  EXPECT_EQ(llama->token_bytes(), GetParam().llama_8b_bytes);
  EXPECT_EQ(llama->block_bytes, 16 * GetParam().llama_8b_bytes);
}

TEST_P(KvDType, IsPlannedToTheByteThatTheStorageTakes) {
  auto backend = ops::make_reference_backend();
  for (const int32_t block_size : {1, 8, 16, 32}) {
    auto checkpoint = checkpoint::Checkpoint::open(tiny_path("llama"));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EngineConfig config{.kv_cache_memory_bytes = 1000000};
    config.kv_cache_dtype = parse_choice<KvCacheDType>(GetParam().name).value();
    config.block_size = block_size;
    const auto planned = plan_model(config, **checkpoint, *backend, 0);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    const MemoryPlan& memory = planned->memory;
    EXPECT_EQ(planned->kv_dtype, GetParam().dtype);
    const ModelConfig& model = planned->config;
    EXPECT_EQ(memory.kv_token_bytes,
              2 * model.num_layers * model.num_kv_heads * ops::kv_vector_bytes(GetParam().dtype, model.head_dim));
    EXPECT_EQ(memory.block_bytes, memory.kv_token_bytes * block_size);
    EXPECT_EQ(memory.num_blocks, 1000000 / memory.block_bytes);

    CountingAllocator allocator(backend->allocator());
    CountingBackend counting(*backend, allocator);
    const auto storage = KvStorage::create(planned->kv_layout, {.num_blocks = memory.num_blocks}, counting);
    ASSERT_TRUE(storage.ok()) << storage.status().message();
    EXPECT_EQ(allocator.held(), memory.kv_bytes);
  }
}

TEST_P(KvDType, MovesTheLogitsOfATinyModelByNoMoreThanItsRounding) {
  auto backend = make_test_backend("auto");
  TinyModel exact("llama", *backend);
  TinyModel rounded("llama", *backend, GetParam().name);
  for (const GoldenCase& one : read_golden("llama")) {
    const auto expected = exact.logits(one.prompt, 2048);
    const auto rows = rounded.logits(one.prompt, 2048);
    double sum = 0;
    int64_t count = 0;
    for (size_t row = 0; row < rows.size(); ++row) {
      for (size_t i = 0; i < rows[row].size(); ++i, ++count) {
        sum += std::fabs(static_cast<double>(rows[row][i]) - expected[row][i]);
      }
    }
    const double mean = sum / static_cast<double>(count);
    EXPECT_LE(mean, GetParam().tolerance) << rows.size() << " tokens";
    if (GetParam().dtype != DType::kF32) {
      EXPECT_GT(mean, 0) << "nothing was rounded";
    }
  }
}

TEST_P(KvDType, GivesTheSameBitsHoweverThePromptIsCut) {
  auto backend = make_test_backend("auto");
  TinyModel model("llama", *backend, GetParam().name);
  for (const GoldenCase& one : read_golden("llama")) {
    const auto whole = model.logits(one.prompt, 2048);
    for (const int32_t chunk : {1, 7, 16}) {
      const auto rows = model.logits(one.prompt, chunk);
      ASSERT_EQ(rows.size(), whole.size());
      for (size_t row = 0; row < rows.size(); ++row) {
        ASSERT_EQ(std::memcmp(rows[row].data(), whole[row].data(), rows[row].size() * sizeof(float)), 0)
            << "row " << row << " in chunks of " << chunk;
      }
    }
  }
}

void PrintTo(const Choice& choice, std::ostream* out) {
  *out << choice.name;
}

INSTANTIATE_TEST_SUITE_P(Names, KvDType, testing::ValuesIn(kChoices), [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace quire::runner
