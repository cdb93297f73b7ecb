// Decoding over a long context, format by format of the KV cache: all layers of a model, each with its own cache, so
// that more is read than the processor's caches hold. To be read beside memory_read of machine_bench.cpp.
#include <benchmark/benchmark.h>

#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cpu/cpu_backend.h"

namespace quire::ops {
namespace {

constexpr int32_t kBlockSize = 16;

struct Geometry {
  int layers;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
};
constexpr Geometry kSmolLm2{30, 9, 3, 64};
constexpr Geometry kLlama8bQuarter{8, 32, 8, 128};  // 8 of the 32 layers

// The caches of all layers, filled through the op with normal numbers.
class Caches {
 public:
  Caches(Backend& backend, const Geometry& geometry, DType dtype, int64_t context) {
    const int64_t blocks = (context + kBlockSize - 1) / kBlockSize;
    KvCacheView view{nullptr, nullptr, dtype, blocks, geometry.num_kv_heads, geometry.head_dim, kBlockSize};
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> vectors(static_cast<size_t>(context * geometry.num_kv_heads * geometry.head_dim));
    for (float& x : vectors) x = normal(random);
    std::vector<int64_t> slots(static_cast<size_t>(context));
    std::iota(slots.begin(), slots.end(), 0);
    for (int layer = 0; layer < geometry.layers; ++layer) {
      for (void** part : {&view.keys, &view.values}) {
        buffers_.emplace_back(backend.allocator(), static_cast<size_t>(blocks * block_bytes(view)));
        *part = buffers_.back().data();
      }
      KvWriteArgs write;
      write.keys = vectors.data();
      write.values = vectors.data();
      write.token_stride = int64_t{geometry.num_kv_heads} * geometry.head_dim;
      write.num_tokens = context;
      write.slots = slots.data();
      write.cache = view;
      backend(write);
      layers_.push_back(view);
    }
  }
  const std::vector<KvCacheView>& layers() const { return layers_; }

 private:
  std::vector<Buffer> buffers_;
  std::vector<KvCacheView> layers_;
};

// `queries` tokens at the end of a context of 2,048, through every layer, on `threads` threads (0: all). With one
// thread the CPU's time says what it costs also on a machine that is busy otherwise.
void attention_over_2k(benchmark::State& state, const Geometry& geometry, DType dtype) {
  const auto made = make_cpu_backend({.threads = static_cast<int>(state.range(1))}).value();
  Backend& backend = *made;
  constexpr int32_t kContext = 2048;
  const auto queries = static_cast<int32_t>(state.range(0));
  const Caches caches(backend, geometry, dtype, kContext);
  const std::vector<float> query(static_cast<size_t>(queries * geometry.num_heads * geometry.head_dim), 0.1f);
  std::vector<float> out(query.size());
  std::vector<BlockId> table(kContext / kBlockSize);
  std::iota(table.begin(), table.end(), 0);
  const int32_t offsets[] = {0, queries};
  PagedAttentionArgs args;
  args.queries = query.data();
  args.query_stride = int64_t{geometry.num_heads} * geometry.head_dim;
  args.num_heads = geometry.num_heads;
  args.num_sequences = 1;
  args.query_offsets = offsets;
  args.context_lengths = &kContext;
  args.block_tables = table.data();
  args.block_table_stride = static_cast<int64_t>(table.size());
  args.scale = 0.125f;
  args.out = out.data();
  int64_t bytes = 0;
  for (const KvCacheView& layer : caches.layers()) bytes += 2 * layer.num_blocks * block_bytes(layer);
  for (auto _ : state) {
    for (const KvCacheView& layer : caches.layers()) {
      args.cache = layer;
      backend(args);
    }
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

// One token's keys and values into every layer.
void kv_write(benchmark::State& state, const Geometry& geometry, DType dtype) {
  auto backend = make_cpu_backend().value();
  const int64_t tokens = state.range(0);
  const Caches caches(*backend, geometry, dtype, tokens);
  std::vector<float> vectors(static_cast<size_t>(tokens * geometry.num_kv_heads * geometry.head_dim), 0.3f);
  std::vector<int64_t> slots(static_cast<size_t>(tokens));
  std::iota(slots.begin(), slots.end(), 0);
  KvWriteArgs write;
  write.keys = vectors.data();
  write.values = vectors.data();
  write.token_stride = int64_t{geometry.num_kv_heads} * geometry.head_dim;
  write.num_tokens = tokens;
  write.slots = slots.data();
  for (auto _ : state) {
    for (const KvCacheView& layer : caches.layers()) {
      write.cache = layer;
      (*backend)(write);
    }
  }
}

void register_all() {
  const DType formats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8};
  const auto title = [](const char* what, const char* model, DType dtype) {
    return std::string(what) + "/" + model + "/" + std::string(name(dtype));
  };
  for (const DType dtype : formats) {
    benchmark::RegisterBenchmark(title("attention_over_2k", "smollm2_135m", dtype).c_str(), attention_over_2k, kSmolLm2,
                                 dtype)
        ->ArgNames({"queries", "threads"})
        ->Args({1, 0})
        ->Args({1, 1})
        ->Args({64, 1})
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(title("attention_over_2k", "llama_8b_quarter", dtype).c_str(), attention_over_2k,
                                 kLlama8bQuarter, dtype)
        ->ArgNames({"queries", "threads"})
        ->Args({1, 0})
        ->Args({1, 1})
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(title("kv_write", "smollm2_135m", dtype).c_str(), kv_write, kSmolLm2, dtype)
        ->Arg(1)
        ->Arg(512)
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

const bool kRegistered = [] {
  register_all();
  return true;
}();

}  // namespace
}  // namespace quire::ops
