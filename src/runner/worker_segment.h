// The memory that an engine's process and its workers share: what ranks exchange numbers by, all of them and those of
// each stage, and for each worker two pairs of rings of messages (plans go in, results come out; the same of
// adapters) and a sign of life. It has no
// name (comm/shared_segment.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "comm/message_ring.h"
#include "comm/shared_communicator.h"

namespace quire::runner {

class WorkerSegment {
 public:
  // Stages of so many ranks each.
  struct Shape {
    int num_stages = 1;
    int stage_size = 1;
    int num_ranks() const { return num_stages * stage_size; }
    bool operator==(const Shape&) const = default;
  };
  static int64_t bytes(const Shape& shape);

  // A view of memory of bytes(shape), zeros at first.
  WorkerSegment(uint8_t* memory, const Shape& shape) : memory_(memory), shape_(shape) {}

  const Shape& shape() const { return shape_; }
  int num_ranks() const { return shape_.num_ranks(); }
  // Of all ranks, and of the ranks of a stage.
  comm::SharedGroupShape all_shape() const { return {.num_ranks = shape_.num_ranks()}; }
  comm::SharedGroupShape stage_shape() const { return {.num_ranks = shape_.stage_size}; }
  void* all() const { return memory_; }
  void* stage(int index) const;
  // Ends all waiting, with this reason; the first one counts.
  void end(std::string_view reason) const;
  // Why; ok: nobody has.
  Status status() const { return comm::shared_group_status(memory_); }
  bool goes_on() const { return status().ok(); }

  // To a worker, and from it.
  comm::MessageRing orders(int rank) const { return ring(rank, 0); }
  comm::MessageRing results(int rank) const { return ring(rank, 1); }
  // Of adapters, beside the plans: to a worker, and from it.
  comm::MessageRing adapter_orders(int rank) const { return ring(num_ranks() + 1 + rank, 0); }
  comm::MessageRing adapter_reports(int rank) const { return ring(num_ranks() + 1 + rank, 1); }
  // What the rank that samples asks of constraints, and the answers.
  comm::MessageRing questions() const { return ring(num_ranks(), 0); }
  comm::MessageRing answers() const { return ring(num_ranks(), 1); }

  // Rises as long as the worker's process runs.
  std::atomic<uint64_t>& heartbeat(int rank) const;

 private:
  comm::MessageRing ring(int pair, int which) const;

  uint8_t* memory_;
  Shape shape_;
};

}  // namespace quire::runner
