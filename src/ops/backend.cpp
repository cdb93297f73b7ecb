#include "ops/backend.h"

#include <chrono>
#include <cstring>

#include "base/check.h"

namespace quire::ops {

void DeviceMemory::upload(void* device, const void* host, size_t bytes) {
  if (bytes != 0) std::memcpy(device, host, bytes);
}

Status DeviceMemory::upload_on_side_stream(void* device, const void* host, size_t bytes) {
  if (bytes != 0) std::memcpy(device, host, bytes);
  return {};
}

void DeviceMemory::download(void* host, const void* device, size_t bytes) {
  if (bytes != 0) std::memcpy(host, device, bytes);
}

void DeviceMemory::copy_to_host(void* host, const void* device, const CopyShape& shape) {
  for (size_t row = 0; row < shape.num_rows; ++row) {
    std::memcpy(static_cast<uint8_t*>(host) + row * shape.host_stride,
                static_cast<const uint8_t*>(device) + row * shape.device_stride, shape.row_bytes);
  }
}

void DeviceMemory::copy_to_device(void* device, const void* host, const CopyShape& shape) {
  for (size_t row = 0; row < shape.num_rows; ++row) {
    std::memcpy(static_cast<uint8_t*>(device) + row * shape.device_stride,
                static_cast<const uint8_t*>(host) + row * shape.host_stride, shape.row_bytes);
  }
}

void Backend::run_in_steps(const GatedLinearArgs& args) {
  run(args.product);
  run(ActivationArgs{.function = args.function,
                     .in = args.product.out,
                     .num_tokens = args.product.num_rows,
                     .size = args.product.weight->rows() / 2,
                     .out = args.out});
}

void Backend::run_in_steps(const AdaptedLinearArgs& args) {
  run(args.product);
  run(args.low_rank);
}

std::unique_ptr<PackedMatrix> WeightMemory::weight_of(const ResidentTable& /*table*/, const TensorView& /*stored*/) {
  QUIRE_CHECK_MSG(false, "this backend's tables are no weights");
  return nullptr;
}

double Recorder::seconds_of(FunctionRef<void()> body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result<std::unique_ptr<OpRecording>> Recorder::record(FunctionRef<void()> /*body*/, bool /*renews_attention*/) {
  QUIRE_CHECK_MSG(false, "this backend records nothing");
  return std::unique_ptr<OpRecording>();
}

void Recorder::replay(const OpRecording& /*recording*/, FunctionRef<void(PagedAttentionArgs& args)> /*renew*/) {
  QUIRE_CHECK_MSG(false, "this backend records nothing");
}

}  // namespace quire::ops
