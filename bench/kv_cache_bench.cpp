// Attention and the KV write, format by format of the cache, over block tables in random order, as a server that has
// run for a while has them. Decoding reads caches that together are larger than the processor's: as many layers as
// that takes. To be read beside memory_read and fma_peak of machine_bench.cpp, in the same run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cpu/cpu_backend.h"

namespace quire::ops {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr DType kFormats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8};

struct Geometry {
  const char* model;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
};
constexpr Geometry kSmolLm2{"smollm2_135m", 9, 3, 64};
constexpr Geometry kLlama8b{"llama_8b", 32, 8, 128};

int64_t blocks_for(int64_t tokens) {
  return (tokens + kBlockSize - 1) / kBlockSize;
}

// Caches of several layers for sequences of these lengths, filled through the op with normal numbers; the sequences'
// blocks lie in random order.
class Caches {
 public:
  Caches(Backend& backend, const Geometry& geometry, DType dtype, std::vector<int32_t> lengths, int64_t least_bytes)
      : lengths_(std::move(lengths)), geometry_(geometry) {
    int64_t blocks = 0;
    for (const int32_t length : lengths_) {
      blocks += blocks_for(length);
      stride_ = std::max(stride_, blocks_for(length));
    }
    KvCacheView view{nullptr, nullptr, dtype, blocks, geometry.num_kv_heads, geometry.head_dim, kBlockSize};
    layer_bytes_ = 2 * blocks * block_bytes(view);
    shuffle_blocks(blocks);
    const auto layers = std::max<int64_t>(1, (least_bytes + layer_bytes_ - 1) / layer_bytes_);
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (void** part : {&view.keys, &view.values}) {
        buffers_.emplace_back(backend.allocator(), static_cast<size_t>(blocks * block_bytes(view)));
        *part = buffers_.back().data();
      }
      fill(backend, view);
      layers_.push_back(view);
    }
  }

  // The last `counts[s]` tokens of every sequence through every layer, once.
  class Step {
   public:
    Step(const Caches& caches, const std::vector<int32_t>& counts) : caches_(caches), offsets_(counts.size() + 1) {
      std::partial_sum(counts.begin(), counts.end(), offsets_.begin() + 1);
      const Geometry& geometry = caches.geometry_;
      query_.resize(static_cast<size_t>(int64_t{offsets_.back()} * geometry.num_heads * geometry.head_dim));
      std::mt19937 random(11);
      std::normal_distribution<float> normal;
      for (float& q : query_) q = normal(random);
      out_.resize(query_.size());
      args_.queries = query_.data();
      args_.query_stride = int64_t{geometry.num_heads} * geometry.head_dim;
      args_.num_heads = geometry.num_heads;
      args_.num_sequences = static_cast<int32_t>(counts.size());
      args_.query_offsets = offsets_.data();
      args_.context_lengths = caches.lengths_.data();
      args_.block_tables = caches.tables_.data();
      args_.block_table_stride = caches.stride_;
      args_.scale = 0.125f;
      args_.out = out_.data();
    }
    void run(Backend& backend) {
      for (const KvCacheView& layer : caches_.layers_) {
        args_.cache = layer;
        backend(args_);
      }
    }
    // Of scores and weighted values, in all layers.
    double operations() const {
      double seen = 0;
      for (size_t s = 0; s + 1 < offsets_.size(); ++s) {
        const double queries = offsets_[s + 1] - offsets_[s];
        seen += queries * (caches_.lengths_[s] - (queries - 1) / 2);
      }
      return 4 * seen * caches_.geometry_.num_heads * caches_.geometry_.head_dim *
             static_cast<double>(caches_.layers_.size());
    }

   private:
    const Caches& caches_;
    std::vector<int32_t> offsets_;
    std::vector<float> query_;
    std::vector<float> out_;
    PagedAttentionArgs args_;
  };

  int64_t bytes() const { return layer_bytes_ * static_cast<int64_t>(layers_.size()); }
  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  const std::vector<KvCacheView>& layers() const { return layers_; }

 private:
  void shuffle_blocks(int64_t blocks) {
    std::vector<BlockId> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(5);
    std::shuffle(order.begin(), order.end(), random);
    tables_.assign(static_cast<size_t>(stride_) * lengths_.size(), 0);
    auto next = order.begin();
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int64_t block = 0; block < blocks_for(lengths_[s]); ++block) {
        tables_[static_cast<size_t>(static_cast<int64_t>(s) * stride_ + block)] = *next++;
      }
    }
  }

  // The same few blocks' worth of numbers over and over: what they are costs nothing, but they must be ordinary.
  void fill(Backend& backend, const KvCacheView& view) {
    constexpr int64_t kTokens = 64;
    const int64_t token_floats = int64_t{geometry_.num_kv_heads} * geometry_.head_dim;
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> vectors(static_cast<size_t>(kTokens * token_floats));
    for (float& x : vectors) x = normal(random);
    std::vector<int64_t> slots(static_cast<size_t>(kTokens));
    KvWriteArgs write;
    write.keys = vectors.data();
    write.values = vectors.data();
    write.token_stride = token_floats;
    write.slots = slots.data();
    write.cache = view;
    const int64_t num_slots = view.num_blocks * kBlockSize;
    for (int64_t first = 0; first < num_slots; first += kTokens) {
      write.num_tokens = std::min(kTokens, num_slots - first);
      std::iota(slots.begin(), slots.end(), first);
      backend(write);
    }
  }

  std::vector<int32_t> lengths_;
  Geometry geometry_;
  int64_t stride_ = 0;
  int64_t layer_bytes_ = 0;
  std::vector<BlockId> tables_;
  std::vector<Buffer> buffers_;
  std::vector<KvCacheView> layers_;
};

constexpr int64_t kUncachedBytes = int64_t{192} << 20;

void run_decode(benchmark::State& state, const Geometry& geometry, DType dtype, const std::vector<int32_t>& lengths,
                int threads) {
  const auto backend = make_cpu_backend({.threads = threads}).value();
  const Caches caches(*backend, geometry, dtype, lengths, kUncachedBytes);
  Caches::Step step(caches, std::vector<int32_t>(lengths.size(), 1));
  for (auto _ : state) step.run(*backend);
  state.SetBytesProcessed(state.iterations() * caches.bytes());
  state.counters["layer"] =
      benchmark::Counter(static_cast<double>(caches.num_layers()),
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// One token each of `sequences` with `context` tokens.
void decode(benchmark::State& state, const Geometry& geometry, DType dtype) {
  const std::vector<int32_t> lengths(static_cast<size_t>(state.range(1)), static_cast<int32_t>(state.range(0)));
  run_decode(state, geometry, dtype, lengths, static_cast<int>(state.range(2)));
}

// 31 sequences of 60 to 339 tokens, and one of 8,192 (or of 200: what the others take without it).
void decode_with_shared_prefix(benchmark::State& state, DType dtype) {
  std::vector<int32_t> lengths;
  for (int32_t s = 0; s < 31; ++s) lengths.push_back(60 + s * 9);
  lengths.push_back(static_cast<int32_t>(state.range(0)));
  run_decode(state, kSmolLm2, dtype, lengths, 0);
}

// The last `queries` of `context` tokens of one sequence, one layer.
void prefill(benchmark::State& state, const Geometry& geometry, DType dtype) {
  const auto backend = make_cpu_backend({.threads = static_cast<int>(state.range(2))}).value();
  const Caches caches(*backend, geometry, dtype, {static_cast<int32_t>(state.range(0))}, 1);
  Caches::Step step(caches, {static_cast<int32_t>(state.range(1))});
  for (auto _ : state) step.run(*backend);
  state.counters["FLOP/s"] = benchmark::Counter(step.operations(), benchmark::Counter::kIsIterationInvariantRate);
}

// Keys and values of some tokens into every one of 30 layers.
void kv_write(benchmark::State& state, DType dtype) {
  const auto backend = make_cpu_backend().value();
  const int64_t tokens = state.range(0);
  const Geometry& geometry = kSmolLm2;
  const int64_t blocks = blocks_for(tokens);
  std::vector<Buffer> buffers;
  std::vector<KvCacheView> layers;
  for (int layer = 0; layer < 30; ++layer) {
    KvCacheView view{nullptr, nullptr, dtype, blocks, geometry.num_kv_heads, geometry.head_dim, kBlockSize};
    for (void** part : {&view.keys, &view.values}) {
      buffers.emplace_back(backend->allocator(), static_cast<size_t>(blocks * block_bytes(view)));
      *part = buffers.back().data();
    }
    layers.push_back(view);
  }
  const std::vector<float> vectors(static_cast<size_t>(tokens * geometry.num_kv_heads * geometry.head_dim), 0.3f);
  std::vector<int64_t> slots(static_cast<size_t>(tokens));
  std::iota(slots.begin(), slots.end(), 0);
  KvWriteArgs write;
  write.keys = vectors.data();
  write.values = vectors.data();
  write.token_stride = int64_t{geometry.num_kv_heads} * geometry.head_dim;
  write.num_tokens = tokens;
  write.slots = slots.data();
  for (auto _ : state) {
    for (const KvCacheView& layer : layers) {
      write.cache = layer;
      (*backend)(write);
    }
  }
}

// Queries and keys of some tokens, 30 layers of SmolLM2-135M: what a rotation of its own costs a step.
void rope(benchmark::State& state) {
  const auto backend = make_cpu_backend().value();
  const int64_t tokens = state.range(0);
  constexpr int64_t kStride = 15 * 64;
  std::vector<float> heads(static_cast<size_t>(tokens * kStride), 0.3f);
  const std::vector<float> table(static_cast<size_t>(1024 * 64), 0.6f);
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  for (size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<int32_t>(t % 1024);
  RopeArgs args;
  args.heads = heads.data();
  args.token_stride = kStride;
  args.num_tokens = tokens;
  args.num_heads = 12;
  args.head_dim = 64;
  args.rotary_dim = 64;
  args.positions = positions.data();
  args.table = table.data();
  args.table_positions = 1024;
  for (auto _ : state) {
    for (int layer = 0; layer < 30; ++layer) (*backend)(args);
  }
}
BENCHMARK(rope)->Arg(1)->Arg(32)->Arg(512)->UseRealTime()->Unit(benchmark::kMicrosecond);

void register_all() {
  const auto title = [](const char* what, const char* model, DType dtype) {
    return std::string(what) + "/" + model + "/" + std::string(name(dtype));
  };
  for (const DType dtype : kFormats) {
    for (const Geometry* geometry : {&kSmolLm2, &kLlama8b}) {
      benchmark::RegisterBenchmark(title("decode", geometry->model, dtype).c_str(), decode, *geometry, dtype)
          ->ArgNames({"context", "sequences", "threads"})
          ->ArgsProduct({{256, 2048, 8192}, {1, 32}, {0}})
          ->Args({8192, 1, 1})
          ->Args({200, 32, 0})
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
      benchmark::RegisterBenchmark(title("prefill", geometry->model, dtype).c_str(), prefill, *geometry, dtype)
          ->ArgNames({"context", "queries", "threads"})
          ->Args({128, 128, 0})
          ->Args({512, 512, 0})
          ->Args({512, 512, 1})
          ->Args({8192, 512, 0})
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
    benchmark::RegisterBenchmark(title("decode_with_shared_prefix", kSmolLm2.model, dtype).c_str(),
                                 decode_with_shared_prefix, dtype)
        ->ArgNames({"longest"})
        ->Arg(200)
        ->Arg(8192)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(title("kv_write", kSmolLm2.model, dtype).c_str(), kv_write, dtype)
        ->ArgNames({"tokens"})
        ->Arg(1)
        ->Arg(32)
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
