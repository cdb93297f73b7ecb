// The ops of a model the size of SmolLM2-135M: all its matrix products as one sequence, attention, packing.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "base/host_memory.h"
#include "ops/cpu/cpu_backend.h"

namespace quire::ops {
namespace {

constexpr int kLayers = 30;
constexpr int64_t kVocabulary = 49152;

struct Product {
  DType dtype;
  int64_t n;
  int64_t k;
};

// Of one layer: QKV, attention output, gate and up, down.
std::vector<Product> layer_products(DType dtype) {
  return {{dtype, 960, 576}, {dtype, 576, 576}, {dtype, 3072, 576}, {dtype, 576, 1536}};
}

// Bytes of blocks whose halves are small normal numbers: a product of them is an ordinary number.
std::vector<uint8_t> random_weight(const Product& product) {
  const DTypeInfo format = info(product.dtype);
  std::mt19937 random(7);
  std::vector<uint8_t> bytes(static_cast<size_t>(product.n * row_bytes(product.dtype, product.k)));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  const size_t step = static_cast<size_t>(format.block_values == 1 ? 2 : format.block_bytes);
  const size_t halves = product.dtype == DType::kQ4_1 ? 2 : 1;
  for (size_t at = 0; at + 2 * halves <= bytes.size(); at += step) {
    for (size_t half = 0; half < halves; ++half) {
      const uint16_t value = 0x2000 | (random() & 0x83ff);
      std::memcpy(&bytes[at + 2 * half], &value, sizeof(value));
    }
  }
  return bytes;
}

std::unique_ptr<Backend> backend_or_skip(benchmark::State& state, const char* isa) {
  auto backend = make_cpu_backend({.isa = parse_choice<Isa>(isa).value()});
  if (backend.ok()) return std::move(backend).value();
  state.SkipWithError(backend.status().message().c_str());
  return nullptr;
}

std::unique_ptr<PackedMatrix> packed(Backend& backend, const Product& product) {
  const std::vector<uint8_t> bytes = random_weight(product);
  const TensorView view{bytes.data(), product.dtype, Shape{product.n, product.k}};
  return backend.pack(std::span(&view, 1)).value();
}

// Every product of the model over `rows` tokens, each weight its own memory as in the model, and the LM head of as many
// rows.
void model_products(benchmark::State& state, const char* isa, DType dtype, DType head) {
  auto backend = backend_or_skip(state, isa);
  if (backend == nullptr) return;
  const int64_t rows = state.range(0);
  std::vector<std::unique_ptr<PackedMatrix>> weights;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Product& product : layer_products(dtype)) weights.push_back(packed(*backend, product));
  }
  // A prefill asks for the logits of few of its tokens; here for all of a decode batch, for one of a longer run.
  const int64_t head_rows = rows <= 32 ? rows : 1;
  const auto lm_head = packed(*backend, {head, kVocabulary, 576});

  const std::vector<float> x(static_cast<size_t>(rows * 1536), 0.5f);
  std::vector<float> out(static_cast<size_t>(std::max(rows * 3072, head_rows * kVocabulary)));
  double products = 0;
  double bytes = 0;
  const auto multiply = [&](const PackedMatrix& weight, int64_t num_rows) {
    LinearArgs args;
    args.x = x.data();
    args.x_stride = weight.columns();
    args.num_rows = num_rows;
    args.weight = &weight;
    args.out = out.data();
    args.out_stride = weight.rows();
    (*backend)(args);
    products += static_cast<double>(num_rows * weight.columns() * weight.rows());
    bytes += static_cast<double>(weight.bytes());
  };
  for (auto _ : state) {
    for (const auto& weight : weights) multiply(*weight, rows);
    multiply(*lm_head, head_rows);
    benchmark::ClobberMemory();
  }
  state.counters["tok/s"] =
      benchmark::Counter(static_cast<double>(rows), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["FLOP/s"] = benchmark::Counter(2 * products, benchmark::Counter::kIsRate);
  state.counters["weight_bytes/s"] = benchmark::Counter(bytes, benchmark::Counter::kIsRate);
}

void row_counts(benchmark::internal::Benchmark* b) {
  b->Arg(1)->Arg(2)->Arg(4)->Arg(8)->Arg(32)->Arg(128)->Arg(512);
  b->UseRealTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(model_products, avx2_q4_1, "avx2", DType::kQ4_1, DType::kQ8_0)->Apply(row_counts);
BENCHMARK_CAPTURE(model_products, avx2_q4_0, "avx2", DType::kQ4_0, DType::kQ8_0)->Apply(row_counts);
BENCHMARK_CAPTURE(model_products, avx2_q8_0, "avx2", DType::kQ8_0, DType::kQ8_0)->Apply(row_counts);
BENCHMARK_CAPTURE(model_products, avx2_f16, "avx2", DType::kF16, DType::kF16)->Apply(row_counts);
BENCHMARK_CAPTURE(model_products, avx2_bf16, "avx2", DType::kBF16, DType::kBF16)->Apply(row_counts);
BENCHMARK_CAPTURE(model_products, avx2_f32, "avx2", DType::kF32, DType::kF32)->Apply(row_counts);
BENCHMARK_CAPTURE(model_products, portable_q4_1, "portable", DType::kQ4_1, DType::kQ8_0)->Apply(row_counts);

// An adapter of every product of the model, in bfloat16: of q, k and v apart, and of gate and up.
struct ModelAdapter {
  ModelAdapter(Backend& backend, int32_t rank) {
    for (int layer = 0; layer < kLayers; ++layer) {
      add(rank, 576, {576, 192, 192});
      add(rank, 576, {576});
      add(rank, 576, {1536, 1536});
      add(rank, 1536, {576});
    }
    memory = Buffer(backend.allocator(), static_cast<size_t>(values) * sizeof(uint16_t));
    auto* numbers = memory.as<uint16_t>();
    prefer_large_pages(numbers, memory.bytes());  // as an engine's adapters are
    std::fill_n(numbers, values, uint16_t{0x3c00});
    for (size_t i = 0; i < factors.size(); ++i) {
      int64_t at = starts[i];
      factors[i].down = numbers + at;
      at += factors[i].rank * factors[i].in_features;
      for (LowRankPart& part : parts[i]) {
        part.up = numbers + at;
        at += part.size * part.rank;
      }
      factors[i].parts = parts[i];
    }
  }
  ModelAdapter(const ModelAdapter&) = delete;

  void add(int32_t rank, int64_t in_features, std::initializer_list<int64_t> sizes) {
    LowRankFactors one{.dtype = DType::kBF16, .in_features = in_features};
    std::vector<LowRankPart> of_product;
    starts.push_back(values);
    int64_t column = 0;
    for (const int64_t size : sizes) {
      of_product.push_back({.column = column, .size = size, .first = one.rank, .rank = rank});
      column += size;
      one.rank += rank;
      values += rank * size;
    }
    values += one.rank * in_features + 32;
    factors.push_back(one);
    parts.push_back(of_product);
  }

  std::vector<LowRankFactors> factors;  // of each product
  std::vector<std::vector<LowRankPart>> parts;
  std::vector<int64_t> starts;
  int64_t values = 0;
  Buffer memory;
};

// The products of the model's layers over `rows` tokens with so many adapters of rank 16 in turns, and without, in
// turns: what each takes.
void adapted_products(benchmark::State& state, const char* isa) {
  auto backend = backend_or_skip(state, isa);
  if (backend == nullptr) return;
  const int64_t rows = state.range(0);
  const int64_t num_adapters = state.range(1);
  std::vector<std::unique_ptr<PackedMatrix>> weights;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Product& product : layer_products(DType::kQ4_1)) weights.push_back(packed(*backend, product));
  }
  std::vector<std::unique_ptr<ModelAdapter>> adapters;
  for (int64_t i = 0; i < num_adapters; ++i) adapters.push_back(std::make_unique<ModelAdapter>(*backend, 16));
  const std::vector<float> x(static_cast<size_t>(rows * 1536), 0.5f);
  std::vector<float> out(static_cast<size_t>(rows * 3072));
  const auto multiply = [&](bool adapted) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < weights.size(); ++i) {
      const PackedMatrix& weight = *weights[i];
      const LinearArgs product{.x = x.data(),
                               .x_stride = weight.columns(),
                               .num_rows = rows,
                               .weight = &weight,
                               .out = out.data(),
                               .out_stride = weight.rows()};
      if (!adapted) {
        (*backend)(product);
        continue;
      }
      std::vector<LowRankRun> runs;
      const int64_t run_rows = rows / num_adapters;
      for (int64_t j = 0; j < num_adapters; ++j)
        runs.push_back({&adapters[static_cast<size_t>(j)]->factors[i], j * run_rows, run_rows});
      (*backend)(AdaptedLinearArgs{.product = product,
                                   .low_rank = {.x = x.data(),
                                                .x_stride = weight.columns(),
                                                .num_rows = rows,
                                                .runs = runs,
                                                .out = out.data(),
                                                .out_stride = weight.rows(),
                                                .out_features = weight.rows()}});
    }
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<double> plain;
  std::vector<double> more;
  for (auto _ : state) {
    plain.push_back(multiply(false));
    more.push_back(multiply(true));
  }
  const auto median = [](std::vector<double>& all) {
    std::ranges::sort(all);
    return all[all.size() / 2];
  };
  state.counters["base_ms"] = median(plain);
  state.counters["adapted_ms"] = median(more);
}
void adapted_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "adapters"});
  b->Args({1, 1})->Args({8, 8})->Args({32, 1})->Args({32, 32})->Args({1024, 1})->Args({1024, 32});
  b->UseRealTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(adapted_products, auto, "auto") -> Apply(adapted_shapes);

void pack_model(benchmark::State& state) {
  auto backend = backend_or_skip(state, "auto");
  if (backend == nullptr) return;
  std::vector<std::pair<Product, std::vector<uint8_t>>> stored;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Product& product : layer_products(DType::kQ4_1)) stored.emplace_back(product, random_weight(product));
  }
  const Product head{DType::kQ8_0, kVocabulary, 576};
  stored.emplace_back(head, random_weight(head));
  for (auto _ : state) {
    std::vector<std::unique_ptr<PackedMatrix>> weights;
    for (const auto& [product, bytes] : stored) {
      const TensorView view{bytes.data(), product.dtype, Shape{product.n, product.k}};
      weights.push_back(backend->pack(std::span(&view, 1)).value());
    }
  }
}
BENCHMARK(pack_model)->UseRealTime()->Unit(benchmark::kMillisecond);

// One layer's attention: `sequences` of `context` tokens each, the last `queries` of them asked for.
template <typename Number>
void attention_over(benchmark::State& state, const char* isa, DType dtype) {
  auto backend = backend_or_skip(state, isa);
  if (backend == nullptr) return;
  constexpr int32_t kHeads = 9;
  constexpr int32_t kKvHeads = 3;
  constexpr int32_t kHeadDim = 64;
  constexpr int32_t kBlock = 16;
  const auto sequences = static_cast<int32_t>(state.range(0));
  const auto context = static_cast<int32_t>(state.range(1));
  const auto queries = static_cast<int32_t>(state.range(2));
  const int64_t blocks = (context + kBlock - 1) / kBlock;
  const auto floats = static_cast<size_t>(sequences * blocks * kBlock * kKvHeads * kHeadDim);
  std::vector<Number> keys(floats);
  std::vector<Number> values(floats);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (Number& key : keys) key = static_cast<Number>(normal(random));
  for (Number& value : values) value = static_cast<Number>(normal(random));
  std::vector<float> query(static_cast<size_t>(sequences * queries * kHeads * kHeadDim));
  for (float& q : query) q = normal(random);
  std::vector<float> out(query.size());
  std::vector<BlockId> tables(static_cast<size_t>(sequences * blocks));
  std::iota(tables.begin(), tables.end(), 0);
  std::vector<int32_t> offsets(static_cast<size_t>(sequences) + 1);
  for (int32_t s = 0; s <= sequences; ++s) offsets[static_cast<size_t>(s)] = s * queries;
  const std::vector<int32_t> lengths(static_cast<size_t>(sequences), context);

  PagedAttentionArgs args;
  args.queries = query.data();
  args.query_stride = kHeads * kHeadDim;
  args.num_heads = kHeads;
  args.cache = {keys.data(), values.data(), dtype, sequences * blocks, kKvHeads, kHeadDim, kBlock};
  args.num_sequences = sequences;
  args.query_offsets = offsets.data();
  args.context_lengths = lengths.data();
  args.block_tables = tables.data();
  args.block_table_stride = blocks;
  args.scale = 0.125f;
  args.out = out.data();
  for (auto _ : state) (*backend)(args);
  const double seen = static_cast<double>(queries) * (context - (queries - 1) / 2.0);
  state.counters["FLOP/s"] =
      benchmark::Counter(4.0 * sequences * seen * kHeads * kHeadDim, benchmark::Counter::kIsIterationInvariantRate);
}
void attention(benchmark::State& state, const char* isa) {
  attention_over<float>(state, isa, DType::kF32);
}
void attention_of_halves(benchmark::State& state, const char* isa) {
  attention_over<_Float16>(state, isa, DType::kF16);
}
// The last rows of one text, as guesses make them.
void few_rows(benchmark::internal::Benchmark* b) {
  for (const int rows : {1, 2, 3, 4, 5, 8, 13, 16, 32, 128}) b->Args({1, 800, rows});
  b->UseRealTime()->Unit(benchmark::kMicrosecond);
}
void attention_shapes(benchmark::internal::Benchmark* b) {
  b->Args({1, 256, 1})->Args({1, 2048, 1})->Args({32, 512, 1})->Args({1, 512, 512});
  b->Args({1, 2048, 512})->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(attention, avx2, "avx2")->Apply(attention_shapes);
BENCHMARK_CAPTURE(attention, portable, "portable")->Apply(attention_shapes);
BENCHMARK_CAPTURE(attention_of_halves, auto, "auto") -> Apply(few_rows);

void silu_and_mul(benchmark::State& state) {
  auto backend = backend_or_skip(state, "auto");
  if (backend == nullptr) return;
  const int64_t tokens = state.range(0);
  const std::vector<float> in(static_cast<size_t>(tokens * 3072), 0.3f);
  std::vector<float> out(static_cast<size_t>(tokens * 1536));
  for (auto _ : state)
    (*backend)(ActivationArgs{.in = in.data(), .num_tokens = tokens, .size = 1536, .out = out.data()});
}
BENCHMARK(silu_and_mul)->Arg(1)->Arg(32)->Arg(512)->UseRealTime()->Unit(benchmark::kMicrosecond);

void rms_norm(benchmark::State& state) {
  auto backend = backend_or_skip(state, "auto");
  if (backend == nullptr) return;
  const int64_t tokens = state.range(0);
  std::vector<float> hidden(static_cast<size_t>(tokens * 576), 0.3f);
  const std::vector<float> weight(576, 1.0f);
  std::vector<float> out(hidden.size());
  for (auto _ : state) {
    (*backend)(RmsNormArgs{
        .hidden = hidden.data(), .weight = weight.data(), .num_tokens = tokens, .size = 576, .out = out.data()});
  }
}
BENCHMARK(rms_norm)->Arg(1)->Arg(32)->Arg(512)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace quire::ops
