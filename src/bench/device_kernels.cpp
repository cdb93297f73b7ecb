#include "bench/device_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/function_ref.h"
#include "bench/name_filter.h"
#include "bench/ordinary_bytes.h"
#include "bench/report.h"
#include "ops/quantise.h"

namespace quire::bench {
namespace {

constexpr int32_t kCardBlockSize = 16;
constexpr int32_t kCardHeads = 32;
constexpr int32_t kCardKvHeads = 8;
constexpr int32_t kCardHeadDim = 128;

Result<Buffer> buffer_of(ops::Backend& backend, size_t bytes) {
  Buffer buffer(backend.allocator(), bytes);
  if (buffer.data() == nullptr) return resource_exhausted("no memory on the device for {} bytes", bytes);
  return buffer;
}

Result<Buffer> numbers_on(ops::Backend& backend, size_t bytes) {
  QUIRE_ASSIGN_OR_RETURN(Buffer buffer, buffer_of(backend, bytes));
  std::vector<uint8_t> piece(std::min<size_t>(bytes, size_t{16} << 20));
  fill_with_numbers(piece, 7);
  for (size_t at = 0; at < bytes; at += piece.size())
    backend.upload(buffer.as<uint8_t>() + at, piece.data(), std::min(piece.size(), bytes - at));
  return buffer;
}

template <typename T>
Result<Buffer> copy_on(ops::Backend& backend, const std::vector<T>& values) {
  QUIRE_ASSIGN_OR_RETURN(Buffer buffer, buffer_of(backend, values.size() * sizeof(T)));
  backend.upload(buffer.data(), values.data(), values.size() * sizeof(T));
  return buffer;
}

class DeviceMeasurer {
 public:
  DeviceMeasurer(const KernelOptions& options, const DeviceKernelSizes& sizes, NameFilter filter,
                 const std::function<void(const std::string&)>& report)
      : options_(options), sizes_(sizes), filter_(std::move(filter)), report_(report) {}

  bool wants(const std::string& name) const { return filter_.matches(name); }

  // call(i): one of the calls that follow each other. As one graph, so that no launch is waited for, unless it cannot
  // be recorded as it is otherwise called.
  void measure(ops::Backend& backend, const std::string& name, double bytes, double operations,
               FunctionRef<void(int)> call, bool is_recorded = true) {
    report_(name);
    const auto body = [&] {
      for (int i = 0; i < sizes_.calls; ++i) call(i);
    };
    body();
    std::unique_ptr<ops::OpRecording> recording;
    if (is_recorded && backend.can_record()) {
      auto recorded = backend.record(body, /*renews_attention=*/false);
      if (recorded.ok()) recording = std::move(*recorded);
    }
    const auto run = [&] {
      if (recording == nullptr) return body();
      backend.replay(*recording, [](ops::PagedAttentionArgs&) {});
    };
    double least = std::numeric_limits<double>::infinity();
    double spent = 0;
    for (int repetition = 0; repetition < 3 || (spent < options_.seconds && repetition < 1000); ++repetition) {
      const double seconds = backend.seconds_of(run);
      spent += seconds;
      least = std::min(least, seconds);
    }
    const double seconds = std::max(least / sizes_.calls, 1e-9);
    times_.push_back({.name = name,
                      .seconds = seconds,
                      .bytes_per_second = bytes / seconds,
                      .operations_per_second = operations / seconds});
  }
  const DeviceKernelSizes& sizes() const { return sizes_; }
  std::vector<KernelTime> take() { return std::move(times_); }

 private:
  const KernelOptions& options_;
  const DeviceKernelSizes& sizes_;
  NameFilter filter_;
  const std::function<void(const std::string&)>& report_;
  std::vector<KernelTime> times_;
};

// As many copies of a weight as no cache holds together.
Result<std::vector<std::unique_ptr<ops::PackedMatrix>>> weights_of(ops::Backend& backend, DType dtype, int64_t outputs,
                                                                   int64_t inputs, int64_t cache_bytes) {
  std::vector<uint8_t> stored(static_cast<size_t>(outputs * ops::quantised_row_bytes(dtype, inputs)));
  fill_with_numbers(stored, 7);
  const TensorView view{stored.data(), dtype, Shape{outputs, inputs}};
  std::vector<std::unique_ptr<ops::PackedMatrix>> weights;
  for (int64_t bytes = 0; bytes < cache_bytes || weights.empty();) {
    auto packed = backend.pack({&view, 1});
    if (!packed.ok()) return packed.status();
    bytes += std::max<int64_t>(1, (*packed)->bytes());
    weights.push_back(std::move(*packed));
  }
  return weights;
}

Status measure_products(const ProductWay& way, DType dtype, int64_t outputs, int64_t inputs, DeviceMeasurer& measurer) {
  const auto name_of = [&](int64_t rows) {
    return fmt::format("linear {} [{}, {}] rows {}, {}", name(dtype), outputs, inputs, rows, way.name);
  };
  const std::vector<int64_t>& all = measurer.sizes().rows;
  if (std::ranges::none_of(all, [&](int64_t rows) { return measurer.wants(name_of(rows)); })) return {};
  ops::Backend& backend = *way.backend;
  QUIRE_ASSIGN_OR_RETURN(const auto weights, weights_of(backend, dtype, outputs, inputs, measurer.sizes().cache_bytes));
  const int64_t most = *std::ranges::max_element(all);
  QUIRE_ASSIGN_OR_RETURN(const Buffer x, numbers_on(backend, static_cast<size_t>(most * inputs) * sizeof(float)));
  QUIRE_ASSIGN_OR_RETURN(const Buffer out, buffer_of(backend, static_cast<size_t>(most * outputs) * sizeof(float)));
  size_t next = 0;
  for (const int64_t rows : all) {
    if (!measurer.wants(name_of(rows))) continue;
    const double bytes =
        static_cast<double>(weights.front()->bytes()) + static_cast<double>(rows * (inputs + outputs)) * sizeof(float);
    measurer.measure(backend, name_of(rows), bytes, 2.0 * static_cast<double>(rows * outputs * inputs), [&](int) {
      const ops::PackedMatrix& weight = *weights[next++ % weights.size()];
      const DType input = backend.input_dtype(weight, rows);
      backend(ops::LinearArgs{.x = {x.data(), input == DType::kF8E4M3 ? DType::kBF16 : input},  // rounded here
                              .x_stride = inputs,
                              .num_rows = rows,
                              .weight = &weight,
                              .out = const_cast<float*>(out.as<const float>()),
                              .out_stride = outputs});
    });
  }
  return {};
}

Status measure_experts(ops::Backend& backend, DType dtype, const DeviceKernelSizes::Experts& shape,
                       DeviceMeasurer& measurer) {
  const std::string name = fmt::format("experts {} {} of [{}, {}] rows {}", quire::name(dtype), shape.experts,
                                       shape.outputs, shape.inputs, shape.rows);
  if (!measurer.wants(name)) return {};
  std::vector<std::unique_ptr<ops::PackedMatrix>> weights;
  std::vector<const ops::PackedMatrix*> pointers;
  std::vector<int32_t> offsets = {0};
  for (int32_t i = 0; i < shape.experts; ++i) {
    QUIRE_ASSIGN_OR_RETURN(auto one, weights_of(backend, dtype, shape.outputs, shape.inputs, 0));
    weights.push_back(std::move(one.front()));
    pointers.push_back(weights.back().get());
    offsets.push_back(static_cast<int32_t>(shape.rows * (i + 1) / shape.experts));
  }
  const auto group = backend.group(pointers);
  QUIRE_ASSIGN_OR_RETURN(const Buffer device_offsets, copy_on(backend, offsets));
  const auto floats_of = [&](int64_t columns) { return static_cast<size_t>(shape.rows * columns) * sizeof(float); };
  QUIRE_ASSIGN_OR_RETURN(const Buffer x, numbers_on(backend, floats_of(shape.inputs)));
  QUIRE_ASSIGN_OR_RETURN(Buffer out, buffer_of(backend, floats_of(shape.outputs)));
  const double bytes = static_cast<double>(weights.front()->bytes()) * shape.experts +
                       static_cast<double>(floats_of(shape.inputs) + floats_of(shape.outputs));
  const double operations = 2.0 * static_cast<double>(shape.rows * shape.outputs * shape.inputs);
  measurer.measure(backend, name, bytes, operations, [&](int) {
    backend(ops::GroupedLinearArgs{.x = x.as<const float>(),
                                   .x_stride = shape.inputs,
                                   .offsets = device_offsets.as<const int32_t>(),
                                   .num_rows = shape.rows,
                                   .weights = group.get(),
                                   .out = out.as<float>(),
                                   .out_stride = shape.outputs});
  });
  return {};
}

Status measure_device_attention(ops::Backend& backend, DType dtype, const DeviceKernelSizes::Attention& shape,
                                DeviceMeasurer& measurer) {
  const std::string name =
      fmt::format("attention {} {} {} x {}{} tokens, {}/{} heads of {}", shape.queries == 1 ? "decode" : "prefill",
                  quire::name(dtype), shape.sequences, shape.queries == 1 ? "" : fmt::format("{} of ", shape.queries),
                  shape.context, kCardHeads, kCardKvHeads, kCardHeadDim);
  if (!measurer.wants(name)) return {};
  ops::KvCacheView cache{
      .dtype = dtype, .num_kv_heads = kCardKvHeads, .head_dim = kCardHeadDim, .block_size = kCardBlockSize};
  cache.keys_by_token = backend.keys_by_token();
  const int64_t blocks = (shape.context + kCardBlockSize - 1) / kCardBlockSize;
  cache.num_blocks = blocks * shape.sequences;
  const auto cache_bytes = static_cast<size_t>(cache.num_blocks * block_bytes(cache));
  QUIRE_ASSIGN_OR_RETURN(Buffer keys, numbers_on(backend, cache_bytes));
  QUIRE_ASSIGN_OR_RETURN(Buffer values, numbers_on(backend, cache_bytes));
  cache.keys = keys.data();
  cache.values = values.data();
  std::vector<BlockId> tables(static_cast<size_t>(cache.num_blocks));
  std::iota(tables.begin(), tables.end(), 0);
  std::vector<int32_t> offsets;
  for (int32_t s = 0; s <= shape.sequences; ++s) offsets.push_back(s * shape.queries);
  const std::vector<int32_t> lengths(static_cast<size_t>(shape.sequences), shape.context);
  QUIRE_ASSIGN_OR_RETURN(const Buffer device_tables, copy_on(backend, tables));
  QUIRE_ASSIGN_OR_RETURN(const Buffer device_offsets, copy_on(backend, offsets));
  QUIRE_ASSIGN_OR_RETURN(const Buffer device_lengths, copy_on(backend, lengths));
  const int64_t tokens = int64_t{shape.sequences} * shape.queries;
  const auto query_bytes = static_cast<size_t>(tokens * kCardHeads * kCardHeadDim) * sizeof(float);
  QUIRE_ASSIGN_OR_RETURN(const Buffer queries, numbers_on(backend, query_bytes));
  QUIRE_ASSIGN_OR_RETURN(Buffer out, buffer_of(backend, query_bytes));
  ops::PagedAttentionArgs args;
  args.queries = queries.as<const float>();
  args.query_stride = int64_t{kCardHeads} * kCardHeadDim;
  args.num_heads = kCardHeads;
  args.cache = cache;
  args.num_sequences = shape.sequences;
  args.query_offsets = {offsets.data(), device_offsets.as<const int32_t>()};
  args.context_lengths = {lengths.data(), device_lengths.as<const int32_t>()};
  args.block_tables = {tables.data(), device_tables.as<const BlockId>()};
  args.block_table_stride = blocks;
  args.scale = 1 / std::sqrt(static_cast<float>(kCardHeadDim));
  args.out = out.as<float>();
  const double seen = static_cast<double>(tokens) * (2.0 * shape.context - shape.queries + 1) / 2;
  measurer.measure(
      backend, name, 2.0 * static_cast<double>(cache_bytes) + 2.0 * static_cast<double>(query_bytes),
      4.0 * seen * kCardHeads * kCardHeadDim, [&](int) { backend(args); },
      /*is_recorded=*/shape.queries == 1);
  return {};
}

struct Drawing {
  const char* name;
  ops::TokenChoice choice;
};
constexpr Drawing kDrawings[] = {
    {"greedy", {}},
    {"temperature", {.inverse_temperature = 1, .u = 0.5}},
    {"top_p", {.inverse_temperature = 1, .top_p = 0.9f, .u = 0.5}},
    {"top_k", {.inverse_temperature = 1, .top_k = 50, .u = 0.5}},
    {"top_k and top_p", {.inverse_temperature = 1, .top_k = 50, .top_p = 0.9f, .u = 0.5}},
};

Status measure_drawing(ops::Backend& backend, const Drawing& drawing, int64_t rows, DeviceMeasurer& measurer) {
  const int64_t size = measurer.sizes().vocabulary;
  const std::string name = fmt::format("choose_tokens [{}, {}], {}", rows, size, drawing.name);
  if (!measurer.wants(name)) return {};
  // Logits that differ, of a deviation of about 2.
  std::vector<float> logits(static_cast<size_t>(size));
  std::minstd_rand random(11);
  for (float& logit : logits) {
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(random() % 65536) / 65536.0f;
    logit = 2 * sum;
  }
  const size_t row_size = logits.size() * sizeof(float);
  QUIRE_ASSIGN_OR_RETURN(Buffer in, buffer_of(backend, static_cast<size_t>(rows) * row_size));
  for (int64_t row = 0; row < rows; ++row) backend.upload(in.as<float>() + row * size, logits.data(), row_size);
  const std::vector<ops::TokenChoice> choices(static_cast<size_t>(rows), drawing.choice);
  QUIRE_ASSIGN_OR_RETURN(const Buffer device_choices, copy_on(backend, choices));
  QUIRE_ASSIGN_OR_RETURN(Buffer tokens, buffer_of(backend, choices.size() * sizeof(int32_t)));
  measurer.measure(backend, name, static_cast<double>(rows) * static_cast<double>(row_size), 0, [&](int) {
    backend(ops::ChooseTokensArgs{.in = in.as<const float>(),
                                  .num_rows = rows,
                                  .size = size,
                                  .choices = {choices.data(), device_choices.as<const ops::TokenChoice>()},
                                  .tokens = tokens.as<int32_t>()});
  });
  return {};
}

}  // namespace

Result<std::vector<KernelTime>> measure_device_kernels(const std::vector<ProductWay>& ways,
                                                       const KernelOptions& options, const DeviceKernelSizes& sizes,
                                                       const std::function<void(const std::string&)>& report) {
  QUIRE_ASSIGN_OR_RETURN(NameFilter filter, NameFilter::compile(options.filter));
  DeviceMeasurer measurer(options, sizes, std::move(filter), report);
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3, DType::kQ4_K, DType::kU4_128}) {
    for (const auto& [outputs, inputs] : sizes.weights) {
      for (const ProductWay& way : ways) QUIRE_RETURN_IF_ERROR(measure_products(way, dtype, outputs, inputs, measurer));
    }
  }
  ops::Backend& backend = *ways.front().backend;
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3_128, DType::kQ4_K}) {
    for (const DeviceKernelSizes::Experts& shape : sizes.experts)
      QUIRE_RETURN_IF_ERROR(measure_experts(backend, dtype, shape, measurer));
  }
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kI8}) {
    for (const DeviceKernelSizes::Attention& shape : sizes.attention)
      QUIRE_RETURN_IF_ERROR(measure_device_attention(backend, dtype, shape, measurer));
  }
  for (const Drawing& drawing : kDrawings) {
    for (const int64_t rows : sizes.drawn_rows)
      QUIRE_RETURN_IF_ERROR(measure_drawing(backend, drawing, rows, measurer));
  }
  return measurer.take();
}

boost::json::array device_kernels_json(const DeviceLimits& limits, const std::vector<KernelTime>& times) {
  boost::json::array kernels;
  for (const KernelTime& time : times) {
    kernels.push_back(
        boost::json::object{{"name", time.name},
                            {"seconds", figure(time.seconds)},
                            {"bytes_per_second", figure(time.bytes_per_second)},
                            {"share_of_bandwidth", figure(time.bytes_per_second / limits.copy_bytes_per_second)},
                            {"operations_per_second", figure(time.operations_per_second)},
                            {"share_of_bf16", figure(time.operations_per_second / limits.bf16_flops)}});
  }
  return kernels;
}

std::string device_kernels_table(const DeviceLimits& limits, const std::vector<KernelTime>& times) {
  std::string table =
      fmt::format("{:<64} {:>10} {:>8} {:>6} {:>9} {:>7}\n", "kernel", "us", "GB/s", "of mem", "TFLOP/s", "of BF16");
  for (const KernelTime& time : times) {
    table += fmt::format("{:<64} {:>10.2f} {:>8.1f} {:>5.0f}% {:>9.2f} {:>6.0f}%\n", time.name, time.seconds * 1e6,
                         time.bytes_per_second * 1e-9, 100 * time.bytes_per_second / limits.copy_bytes_per_second,
                         time.operations_per_second * 1e-12, 100 * time.operations_per_second / limits.bf16_flops);
  }
  return table;
}

}  // namespace quire::bench
