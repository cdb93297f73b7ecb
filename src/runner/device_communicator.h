// Numbers in a device's own memory, exchanged in their turn with its ops. By way of the host each call is copied to
// pinned memory, goes through a communicator there, and is copied back: with the bits of the host's communicator. Where
// devices reach each other (ops/device_link.h) sums, columns and messages go there instead. Calls return before they
// are done, and may be recorded and replayed with the ops around them.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "comm/communicator.h"
#include "ops/backend.h"

namespace quire::runner {

// Of the same ranks as `host`; both outlive it. Spans and matrices that its calls are given are the backend's memory.
// `host` is called in the turn of the ops, from a thread of the backend's: whoever else calls it first waits until the
// backend has done all (Backend::synchronise()), before asking for status() too. widest_row: floats of the widest
// matrix that gather_columns() will be given. link: of the same ranks; nullptr: all goes by way of the host. one_order:
// a sum's order follows from the ranks alone, not from how many numbers there are, so that some links are not asked for
// those that they add up otherwise.
// Errors: resource_exhausted where there is no pinned memory, or none of the device's.
struct DeviceWays {
  int64_t widest_row = 0;
  std::unique_ptr<ops::DeviceLink> link = nullptr;
  bool one_order = false;
};
Result<std::unique_ptr<comm::Communicator>> make_device_communicator(ops::Backend& backend, comm::Communicator& host,
                                                                     DeviceWays ways);

// The link that the ranks of `host` have, if all have one; nullptr, with the reason in a line of the first one's log.
std::unique_ptr<ops::DeviceLink> link_ranks(ops::Backend& backend, comm::Communicator& host);

}  // namespace quire::runner
