// A communicator over memory that the ranks share: threads of one process, or processes of one host.
//
// Each rank has a slot that the others read. A message is taken in pieces of a slot; slots are double, so that a piece
// costs one meeting of all ranks, or two where a large sum is divided between them: each rank then adds up its own part
// of the numbers and the others copy it, which is less work than if each added up all.
//
// Waiting spins and then sleeps. It ends with an error when the group is ended by anybody who has the memory, or when
// the process of another rank is gone, which each rank sees by itself (pidfd_open) and tells the others.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "comm/communicator.h"

namespace quire::comm {

inline constexpr int kMostRanks = 64;

struct SharedGroupShape {
  int num_ranks = 1;
  int64_t slot_bytes = 256 << 10;  // of a piece
};

// Of memory that is as large as shared_group_bytes() says and begins at a cache line; all zeros before the first rank
// joins.
int64_t shared_group_bytes(const SharedGroupShape& shape);

struct SharedRankOptions {
  int rank = 0;
  std::chrono::microseconds spin{200};
};

// Joins. The memory must outlive the communicator. Errors: invalid_argument for a rank that is none of the group, or
// that somebody has already, and for memory of another group's shape.
Result<std::unique_ptr<Communicator>> join_shared_group(void* memory, const SharedGroupShape& shape,
                                                        const SharedRankOptions& options);

// Ends all waiting of the group, now and to come, with an error that gives this reason; the first one counts.
void end_shared_group(void* memory, std::string_view reason);
// Why the group was ended; ok: it was not.
Status shared_group_status(const void* memory);

}  // namespace quire::comm
