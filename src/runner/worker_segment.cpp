#include "runner/worker_segment.h"

namespace quire::runner {
namespace {

constexpr int64_t kRingBytes = 1 << 20;
constexpr int64_t kLine = 64;
// Results are waited for asleep: the core is a worker's.
constexpr comm::Patience kAsleep{};

int64_t groups_bytes(const WorkerSegment::Shape& shape) {
  return comm::shared_group_bytes({.num_ranks = shape.num_ranks()}) +
         shape.num_stages * comm::shared_group_bytes({.num_ranks = shape.stage_size});
}

}  // namespace

int64_t WorkerSegment::bytes(const Shape& shape) {
  return groups_bytes(shape) + shape.num_ranks() * kLine +
         int64_t{2 * shape.num_ranks() + 1} * 2 * comm::MessageRing::bytes(kRingBytes);
}

void* WorkerSegment::stage(int index) const {
  return memory_ + comm::shared_group_bytes(all_shape()) + index * comm::shared_group_bytes(stage_shape());
}

void WorkerSegment::end(std::string_view reason) const {
  comm::end_shared_group(all(), reason);
  for (int index = 0; index < shape_.num_stages; ++index) comm::end_shared_group(stage(index), reason);
}

std::atomic<uint64_t>& WorkerSegment::heartbeat(int rank) const {
  return *reinterpret_cast<std::atomic<uint64_t>*>(memory_ + groups_bytes(shape_) + rank * kLine);
}

comm::MessageRing WorkerSegment::ring(int pair, int which) const {
  uint8_t* rings = memory_ + groups_bytes(shape_) + num_ranks() * kLine;
  return {rings + (int64_t{2} * pair + which) * comm::MessageRing::bytes(kRingBytes), kRingBytes, kAsleep};
}

}  // namespace quire::runner
