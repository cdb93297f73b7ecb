// A way between the memories of several devices of one kind that the host's memory has no part in. Who the others are
// the caller says (LinkGroup); each of them makes the same calls in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/status.h"

namespace quire::ops {

// The ranks of a link, each with a backend of its own.
struct LinkGroup {
  int rank = 0;
  int size = 1;
  // all: `own` of each rank, in their order; on all ranks at once. Errors: where a rank is gone.
  std::function<Status(std::span<const std::byte> own, std::span<std::byte> all)> gather;
};

// Calls take their turn with the backend's ops, return before they are done, and may be recorded. What they are given
// is the backend's memory. A call that is refused is remembered: status() says so, and calls do nothing from then on.
class DeviceLink {
 public:
  struct Transfer {
    void* data = nullptr;
    size_t bytes = 0;
    int peer = 0;
    bool sends = false;  // else it receives
  };

  virtual ~DeviceLink() = default;
  virtual const std::string& description() const = 0;  // "NCCL 2.27.3": for people
  // values: those of all ranks added up, on every rank. The order of the sums follows from `count` and the number of
  // ranks, and of a value from its place among them; it is the same on all ranks.
  virtual void all_reduce(float* values, int64_t count) = 0;
  // Whether that order is the ranks' own, ((x0 + x1) + x2) + ..., whatever `count` is.
  virtual bool adds_in_order(const float* /*values*/, int64_t /*count*/) const { return false; }
  // All of them together; those between two ranks in their order.
  virtual void transfer(std::span<const Transfer> transfers) = 0;
  virtual Status status() const = 0;
};

}  // namespace quire::ops
