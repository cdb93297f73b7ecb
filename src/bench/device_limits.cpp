#include "bench/device_limits.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "bench/ordinary_bytes.h"
#include "bench/report.h"

namespace quire::bench {
namespace {

constexpr double kSeconds = 0.2;  // of repetitions a figure
constexpr int kCalls = 8;         // a time that is taken

Result<Buffer> on_device(ops::Backend& backend, const std::vector<uint8_t>& bytes) {
  Buffer buffer(backend.allocator(), bytes.size());
  if (buffer.data() == nullptr) return resource_exhausted("no memory on the device for {} bytes", bytes.size());
  backend.upload(buffer.data(), bytes.data(), bytes.size());
  return buffer;
}

// Of a call, on the mean of kCalls that follow each other.
template <typename Call>
double seconds_of(ops::Backend& backend, const Call& call) {
  call();
  double least = std::numeric_limits<double>::infinity();
  double spent = 0;
  for (int repetition = 0; repetition < 3 || spent < kSeconds; ++repetition) {
    const double seconds = backend.seconds_of([&] {
      for (int i = 0; i < kCalls; ++i) call();
    });
    least = std::min(least, seconds);
    spent += std::max(seconds, 1e-4);
  }
  return least / kCalls;
}

}  // namespace

Result<DeviceLimits> measure_device(ops::Backend& backend, int64_t size) {
  const auto count = static_cast<size_t>(size * size);
  std::vector<uint8_t> numbers(count * sizeof(float));
  fill_with_numbers(numbers, 7);
  DeviceLimits limits;

  QUIRE_ASSIGN_OR_RETURN(Buffer floats, on_device(backend, numbers));
  limits.update_bytes_per_second =
      2 * static_cast<double>(numbers.size()) / seconds_of(backend, [&] {
        backend(ops::ScaleArgs{.values = floats.as<float>(), .num_rows = size, .size = size});
      });

  QUIRE_ASSIGN_OR_RETURN(Buffer copied, on_device(backend, numbers));
  limits.copy_bytes_per_second = 2 * static_cast<double>(numbers.size()) / seconds_of(backend, [&] {
                                   backend(ops::CopyHeadsArgs{.in = floats.as<float>(),
                                                              .in_token_stride = size,
                                                              .in_head_stride = size,
                                                              .num_tokens = size,
                                                              .num_heads = 1,
                                                              .size = size,
                                                              .out = copied.as<float>(),
                                                              .out_token_stride = size,
                                                              .out_head_stride = size});
                                 });

  // As many as no cache holds together.
  constexpr size_t kWeights = 4;
  std::vector<std::unique_ptr<ops::PackedMatrix>> weights;
  const TensorView stored{numbers.data(), DType::kBF16, Shape{size, size}};
  while (weights.size() < kWeights) {
    QUIRE_ASSIGN_OR_RETURN(auto weight, backend.pack(std::span(&stored, 1)));
    weights.push_back(std::move(weight));
  }
  Buffer out(backend.allocator(), numbers.size());
  if (out.data() == nullptr) return resource_exhausted("no memory on the device for {} bytes", numbers.size());
  size_t next = 0;
  const auto multiply = [&](int64_t rows) {
    const ops::PackedMatrix& weight = *weights[next++ % kWeights];
    const DType dtype = backend.input_dtype(weight, rows);
    backend(ops::LinearArgs{.x = {floats.data(), dtype},
                            .x_stride = size,
                            .num_rows = rows,
                            .weight = &weight,
                            .out = {out.data(), dtype},
                            .out_stride = size});
  };
  const auto numbers_of_weight = static_cast<double>(count);
  // By our own kernel and by the library's, of which neither is the faster on every card.
  for (const int64_t rows : {1, 16}) {
    limits.read_bytes_per_second =
        std::max(limits.read_bytes_per_second, 2 * numbers_of_weight / seconds_of(backend, [&] { multiply(rows); }));
  }
  limits.bf16_flops = 2 * numbers_of_weight * static_cast<double>(size) / seconds_of(backend, [&] { multiply(size); });
  return limits;
}

boost::json::object device_limits_json(const DeviceLimits& limits) {
  return {{"copy_bytes_per_second", figure(limits.copy_bytes_per_second)},
          {"update_bytes_per_second", figure(limits.update_bytes_per_second)},
          {"read_bytes_per_second", figure(limits.read_bytes_per_second)},
          {"bf16_flops", figure(limits.bf16_flops)}};
}

std::string device_limits_table(const DeviceLimits& limits) {
  return fmt::format(
      "memory, copied                      {:8.1f} GB/s\n"
      "memory, read and written back       {:8.1f} GB/s\n"
      "memory, weights of BF16, few rows   {:8.1f} GB/s\n"
      "BF16 product                        {:8.1f} TFLOP/s\n",
      limits.copy_bytes_per_second * 1e-9, limits.update_bytes_per_second * 1e-9, limits.read_bytes_per_second * 1e-9,
      limits.bf16_flops * 1e-12);
}

}  // namespace quire::bench
