#include "bench/kernels.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include "bench/name_filter.h"
#include "bench/ordinary_bytes.h"
#include "bench/report.h"
#include "bench/stopwatch.h"

namespace quire::bench {
namespace {

namespace json = boost::json;

constexpr int32_t kBlockSize = 16;

// Bytes that lie in no cache together.
int64_t working_set_bytes() {
  constexpr int64_t kLeast = 64 << 20;
  constexpr int64_t kMost = 256 << 20;
  return std::clamp<int64_t>(2 * sysconf(_SC_LEVEL3_CACHE_SIZE), kLeast, kMost);
}

// Runs the cases as they are made, so that one case's memory is gone before the next one's is taken.
class Measurer {
 public:
  Measurer(const KernelOptions& options, NameFilter filter, const std::function<void(const std::string&)>& report)
      : options_(options), filter_(std::move(filter)), report_(report) {}

  bool wants(const std::string& name) const { return filter_.matches(name); }
  void measure(const KernelCase& one) {
    using Clock = std::chrono::steady_clock;
    report_(one.name);
    // Groups of calls long enough for the clock and for what differs from copy to copy.
    constexpr double kGroupSeconds = 2e-3;
    one.call();
    const Clock::time_point start = Clock::now();
    one.call();
    const double once = std::max(1e-8, std::chrono::duration<double>(Clock::now() - start).count());
    const auto calls = static_cast<int64_t>(std::clamp(std::ceil(kGroupSeconds / once), 1.0, 1e5));
    const double group = least_seconds(options_.seconds, [&] {
      for (int64_t i = 0; i < calls; ++i) one.call();
    });
    const double seconds = group / static_cast<double>(calls);
    times_.push_back({.name = one.name,
                      .seconds = seconds,
                      .bytes_per_second = one.bytes / seconds,
                      .operations_per_second = one.operations / seconds});
  }
  std::vector<KernelTime> take() { return std::move(times_); }

 private:
  const KernelOptions& options_;
  NameFilter filter_;
  const std::function<void(const std::string&)>& report_;
  std::vector<KernelTime> times_;
};

// --- matrix products -------------------------------------------------------------------------------------------------

constexpr int64_t kRows[] = {1, 4, 8, 32, 256};

Status measure_linear(ops::Backend& backend, DType dtype, int64_t n, int64_t k, Measurer& measurer) {
  const auto name = [&](int64_t rows) {
    return fmt::format("linear {} [{}, {}] rows {}", quire::name(dtype), n, k, rows);
  };
  if (k % info(dtype).block_values != 0) return {};  // the format has no such matrix
  if (std::none_of(std::begin(kRows), std::end(kRows), [&](int64_t rows) { return measurer.wants(name(rows)); })) {
    return {};
  }
  std::vector<uint8_t> stored(static_cast<size_t>(n * ops::quantised_row_bytes(dtype, k)));
  fill_with_numbers(stored, 7);
  const TensorView view{stored.data(), dtype, Shape{n, k}};
  std::vector<std::unique_ptr<ops::PackedMatrix>> copies;
  int64_t bytes = 0;
  for (const int64_t wanted = working_set_bytes(); bytes < wanted;) {
    auto packed = backend.pack(std::span(&view, 1));
    if (packed.status().code() == StatusCode::kUnimplemented) return {};
    if (!packed.ok()) return packed.status();
    bytes += std::max<int64_t>(1, (*packed)->bytes());
    copies.push_back(std::move(packed).value());
  }
  constexpr int64_t kMostRows = kRows[std::size(kRows) - 1];
  const std::vector<float> x(static_cast<size_t>(kMostRows * k), 0.5f);
  std::vector<float> out(static_cast<size_t>(kMostRows * n));
  size_t next = 0;
  for (const int64_t rows : kRows) {
    if (!measurer.wants(name(rows))) continue;
    measurer.measure({.name = name(rows),
                      .bytes = static_cast<double>(bytes) / static_cast<double>(copies.size()) +
                               static_cast<double>(rows * (n + k)) * sizeof(float),
                      .operations = 2.0 * static_cast<double>(rows * n * k),
                      .call = [&, rows] {
                        ops::LinearArgs args;
                        args.x = x.data();
                        args.x_stride = k;
                        args.num_rows = rows;
                        args.weight = copies[next++ % copies.size()].get();
                        args.out = out.data();
                        args.out_stride = n;
                        backend(args);
                      }});
  }
  return {};
}

// --- attention -------------------------------------------------------------------------------------------------------

struct AttentionShape {
  int32_t num_sequences;
  int32_t context;
  int32_t queries;  // of each sequence, its last ones
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
};

// The heads of a small model and of one of 8 billion parameters.
constexpr AttentionShape kAttention[] = {
    {1, 256, 1, 9, 3, 64},    {32, 256, 1, 9, 3, 64},    {1, 8192, 1, 9, 3, 64},  {32, 8192, 1, 9, 3, 64},
    {1, 512, 512, 9, 3, 64},  {1, 8192, 512, 9, 3, 64},  {1, 256, 1, 32, 8, 128}, {32, 256, 1, 32, 8, 128},
    {1, 8192, 1, 32, 8, 128}, {1, 512, 512, 32, 8, 128},
};

// A paged cache full of numbers, a step's queries, and tables for as many disjoint sets of sequences as it holds.
void measure_attention(ops::Backend& backend, DType dtype, const AttentionShape& shape, Measurer& measurer) {
  const std::string name = fmt::format(
      "attention {} {} {} x {} tokens, {}/{} heads of {}", shape.queries == 1 ? "decode" : "prefill",
      quire::name(dtype), shape.num_sequences,
      shape.queries == 1 ? fmt::to_string(shape.context) : fmt::format("{} of {}", shape.queries, shape.context),
      shape.num_heads, shape.num_kv_heads, shape.head_dim);
  if (!measurer.wants(name)) return;
  ops::KvCacheView cache{
      .dtype = dtype, .num_kv_heads = shape.num_kv_heads, .head_dim = shape.head_dim, .block_size = kBlockSize};
  const int64_t blocks = shape.context / kBlockSize;  // of a sequence
  const int64_t set_blocks = blocks * shape.num_sequences;
  const int64_t num_sets = std::max<int64_t>(1, working_set_bytes() / (2 * set_blocks * block_bytes(cache)));
  cache.num_blocks = num_sets * set_blocks;
  std::vector<uint8_t> keys(static_cast<size_t>(cache.num_blocks * block_bytes(cache)));
  fill_with_numbers(keys, 8);
  std::vector<uint8_t> values(keys.size());
  fill_with_numbers(values, 9);
  cache.keys = keys.data();
  cache.values = values.data();
  std::vector<BlockId> tables(static_cast<size_t>(cache.num_blocks));
  std::iota(tables.begin(), tables.end(), 0);

  const int64_t tokens = static_cast<int64_t>(shape.num_sequences) * shape.queries;
  const int64_t query_floats = tokens * shape.num_heads * shape.head_dim;
  const std::vector<float> queries(static_cast<size_t>(query_floats), 0.25f);
  std::vector<float> out(queries.size());
  std::vector<int32_t> offsets;
  for (int32_t s = 0; s <= shape.num_sequences; ++s) offsets.push_back(s * shape.queries);
  const std::vector<int32_t> lengths(static_cast<size_t>(shape.num_sequences), shape.context);

  const double first = shape.context - shape.queries + 1;
  const double seen = static_cast<double>(tokens) * (first + shape.context) / 2;
  int64_t next = 0;
  measurer.measure({.name = name,
                    .bytes = static_cast<double>(2 * set_blocks * block_bytes(cache)) +
                             2.0 * static_cast<double>(query_floats) * sizeof(float),
                    .operations = 4.0 * seen * shape.num_heads * shape.head_dim,
                    .call = [&] {
                      ops::PagedAttentionArgs args;
                      args.queries = queries.data();
                      args.query_stride = static_cast<int64_t>(shape.num_heads) * shape.head_dim;
                      args.num_heads = shape.num_heads;
                      args.cache = cache;
                      args.num_sequences = shape.num_sequences;
                      args.query_offsets = offsets.data();
                      args.context_lengths = lengths.data();
                      args.block_tables = tables.data() + (next++ % num_sets) * set_blocks;
                      args.block_table_stride = blocks;
                      args.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
                      args.out = out.data();
                      backend(args);
                    }});
}

void measure_kv_write(ops::Backend& backend, DType dtype, int64_t tokens, Measurer& measurer) {
  constexpr int32_t kKvHeads = 8;
  constexpr int32_t kHeadDim = 128;
  const std::string name =
      fmt::format("kv_write {} {} tokens, {} heads of {}", quire::name(dtype), tokens, kKvHeads, kHeadDim);
  if (!measurer.wants(name)) return;
  ops::KvCacheView cache{.dtype = dtype, .num_kv_heads = kKvHeads, .head_dim = kHeadDim, .block_size = kBlockSize};
  cache.num_blocks = (tokens + kBlockSize - 1) / kBlockSize;
  std::vector<uint8_t> keys(static_cast<size_t>(cache.num_blocks * block_bytes(cache)));
  std::vector<uint8_t> values(keys.size());
  cache.keys = keys.data();
  cache.values = values.data();
  const std::vector<float> fresh(static_cast<size_t>(tokens * kKvHeads * kHeadDim), 0.25f);
  std::vector<int64_t> slots(static_cast<size_t>(tokens));
  std::iota(slots.begin(), slots.end(), 0);
  measurer.measure({.name = name,
                    .bytes = 2.0 * static_cast<double>(tokens * kKvHeads) *
                             (kHeadDim * sizeof(float) + static_cast<double>(ops::kv_vector_bytes(dtype, kHeadDim))),
                    .operations = 0,
                    .call = [&] {
                      ops::KvWriteArgs args;
                      args.keys = fresh.data();
                      args.values = fresh.data();
                      args.token_stride = static_cast<int64_t>(kKvHeads) * kHeadDim;
                      args.num_tokens = tokens;
                      args.slots = slots.data();
                      args.cache = cache;
                      backend(args);
                    }});
}

// --- the small ones --------------------------------------------------------------------------------------------------

void measure_rms_norm(ops::Backend& backend, int64_t tokens, int64_t size, Measurer& measurer) {
  const std::string name = fmt::format("rms_norm with add [{}, {}]", tokens, size);
  if (!measurer.wants(name)) return;
  std::vector<float> hidden(static_cast<size_t>(tokens * size), 0.5f);
  const std::vector<float> delta(hidden.size(), 1e-9f);
  const std::vector<float> weight(static_cast<size_t>(size), 1.0f);
  std::vector<float> out(hidden.size());
  const double values = static_cast<double>(hidden.size());
  measurer.measure({.name = name,
                    .bytes = (4 * values + static_cast<double>(size)) * sizeof(float),
                    .operations = 5 * values,
                    .call = [&] {
                      backend(ops::RmsNormArgs{.hidden = hidden.data(),
                                               .delta = delta.data(),
                                               .weight = weight.data(),
                                               .num_tokens = tokens,
                                               .size = size,
                                               .out = out.data()});
                    }});
}

void measure_silu_and_mul(ops::Backend& backend, int64_t tokens, int64_t size, Measurer& measurer) {
  const std::string name = fmt::format("silu_and_mul [{}, {}]", tokens, size);
  if (!measurer.wants(name)) return;
  const std::vector<float> in(static_cast<size_t>(2 * tokens * size), 0.5f);
  std::vector<float> out(in.size() / 2);
  const double values = static_cast<double>(out.size());
  measurer.measure({.name = name, .bytes = 3 * values * sizeof(float), .operations = 4 * values, .call = [&] {
                      backend(
                          ops::ActivationArgs{.in = in.data(), .num_tokens = tokens, .size = size, .out = out.data()});
                    }});
}

void measure_rope(ops::Backend& backend, int64_t tokens, int32_t heads, int32_t head_dim, Measurer& measurer) {
  const std::string name = fmt::format("rope {} tokens, {} heads of {}", tokens, heads, head_dim);
  if (!measurer.wants(name)) return;
  std::vector<float> values(static_cast<size_t>(tokens * heads * head_dim), 0.5f);
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> table(static_cast<size_t>(tokens * head_dim));
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<int64_t>(i) % head_dim < head_dim / 2 ? 0.8f : 0.6f;  // a rotation: lengths stay
  }
  const double count = static_cast<double>(values.size());
  measurer.measure({.name = name,
                    .bytes = (2 * count + static_cast<double>(table.size())) * sizeof(float),
                    .operations = 3 * count,
                    .call = [&] {
                      backend(ops::RopeArgs{.heads = values.data(),
                                            .token_stride = static_cast<int64_t>(heads) * head_dim,
                                            .num_tokens = tokens,
                                            .num_heads = heads,
                                            .head_dim = head_dim,
                                            .rotary_dim = head_dim,
                                            .positions = positions.data(),
                                            .table = table.data(),
                                            .table_positions = tokens});
                    }});
}

}  // namespace

Result<std::vector<KernelTime>> measure_kernels(ops::Backend& backend, const KernelOptions& options,
                                                const std::function<void(const std::string&)>& report) {
  QUIRE_ASSIGN_OR_RETURN(NameFilter filter, NameFilter::compile(options.filter));
  Measurer measurer(options, std::move(filter), report);
  backend.bind_thread();
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    QUIRE_RETURN_IF_ERROR(measure_linear(backend, dtype, 1536, 576, measurer));
    QUIRE_RETURN_IF_ERROR(measure_linear(backend, dtype, 4096, 4096, measurer));
  }
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!ops::is_kv_format(dtype)) continue;
    for (const AttentionShape& shape : kAttention) measure_attention(backend, dtype, shape, measurer);
    for (const int64_t tokens : {1, 32, 512}) measure_kv_write(backend, dtype, tokens, measurer);
  }
  for (const int64_t tokens : {1, 32, 512}) {
    for (const int64_t size : {576, 4096}) measure_rms_norm(backend, tokens, size, measurer);
    for (const int64_t size : {1536, 14336}) measure_silu_and_mul(backend, tokens, size, measurer);
    measure_rope(backend, tokens, 12, 64, measurer);
    measure_rope(backend, tokens, 40, 128, measurer);
  }
  return measurer.take();
}

json::object kernels_json(const MachineLimits& limits, const std::vector<KernelTime>& times) {
  json::array kernels;
  for (const KernelTime& time : times) {
    kernels.push_back(
        json::object{{"name", time.name},
                     {"seconds", figure(time.seconds)},
                     {"bytes_per_second", figure(time.bytes_per_second)},
                     {"share_of_bandwidth", figure(time.bytes_per_second / limits.memory_bytes_per_second)},
                     {"operations_per_second", figure(time.operations_per_second)},
                     {"share_of_fma_peak", figure(time.operations_per_second / limits.float_flops)}});
  }
  return {{"machine", json::object{{"memory_bytes_per_second", figure(limits.memory_bytes_per_second)},
                                   {"float32_flops", figure(limits.float_flops)},
                                   {"float32_unit", limits.float_unit},
                                   {"int8_ops", figure(limits.int8_ops)},
                                   {"int8_unit", limits.int8_unit},
                                   {"parallel_region_seconds", figure(limits.parallel_region_seconds)}}},
          {"kernels", kernels}};
}

std::string kernels_table(const MachineLimits& limits, const std::vector<KernelTime>& times) {
  std::string table;
  table += fmt::format("memory read      {:8.1f} GB/s\n", limits.memory_bytes_per_second * 1e-9);
  table += fmt::format("float32 FMA      {:8.1f} GFLOP/s ({})\n", limits.float_flops * 1e-9, limits.float_unit);
  if (limits.int8_ops > 0) {
    table += fmt::format("8-bit multiply   {:8.1f} Gop/s ({})\n", limits.int8_ops * 1e-9, limits.int8_unit);
  }
  table += fmt::format("parallel region  {:8.2f} us\n\n", limits.parallel_region_seconds * 1e6);
  table += fmt::format("{:<58} {:>11} {:>8} {:>6} {:>8} {:>6}\n", "kernel", "us", "GB/s", "of mem", "Gop/s", "of FMA");
  for (const KernelTime& time : times) {
    table += fmt::format("{:<58} {:>11.2f} {:>8.2f} {:>5.0f}% {:>8.1f} {:>5.0f}%\n", time.name, time.seconds * 1e6,
                         time.bytes_per_second * 1e-9, 100 * time.bytes_per_second / limits.memory_bytes_per_second,
                         time.operations_per_second * 1e-9, 100 * time.operations_per_second / limits.float_flops);
  }
  return table;
}

}  // namespace quire::bench
