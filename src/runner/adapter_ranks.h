// The adapters of a model that several ranks compute, as the process with their AdapterStore has them: nothing but who
// they are. Each rank reads the same file for itself and keeps its part (rank_adapters.h). An adapter is refused when
// one of them refuses it. It is there when all ranks have said that it has its place; then steps may name it, and find
// it on every rank.
//
// Ranks may be started again: then they are told of all adapters anew.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/adapter_file.h"
#include "runner/adapter.h"
#include "runner/worker_messages.h"

namespace quire::runner {

// Messages to and from the ranks of one life, beside those of steps. Both wait; errors: unavailable where the group has
// ended.
class AdapterLink {
 public:
  virtual ~AdapterLink() = default;
  virtual int num_ranks() const = 0;
  virtual Status write(int rank, std::string_view order) = 0;
  virtual Result<std::string> read(int rank) = 0;
  // The ranks are of no use any more, for this reason; the first one counts.
  virtual void end(std::string_view reason) = 0;
};

// Thread-safe.
class AdapterRanks : public std::enable_shared_from_this<AdapterRanks> {
 public:
  // most_bytes: of all adapters, as rank 0 counts. restarts: whether ranks that have failed may come back, which is
  // then waited for.
  AdapterRanks(int64_t most_bytes, bool restarts) : most_bytes_(most_bytes), restarts_(restarts) {}

  // What stands for it here: it is the ranks' as long as anybody has this. Steps find it by `number` when it has its
  // place (Adapter::take_place_elsewhere()): on cards that have memory of their own there may be no piece that is large
  // enough, on one of them or all. Its bytes are the rank's that has the least room for it, in parts of most_bytes.
  // Errors, of both: what a rank says of it, with the rank's number where not all say the same; unavailable where the
  // ranks are gone for good, or where they were started again and the files are others by now.
  Result<std::shared_ptr<Adapter>> load(const checkpoint::AdapterFile& file, const std::string& path, int32_t number);

  // Ranks that know no adapter yet are told of all that are there. Gives the numbers of those that are not to be had
  // any more, for their files have changed. Called by one thread. Errors: the link's.
  Result<std::vector<int32_t>> connect(std::shared_ptr<AdapterLink> link);
  // Nobody waits for the ranks any more. REQUIRES: reads of the last link end.
  void close();

 private:
  struct Entry {
    int32_t number = 0;
    std::string path;
    uint64_t revision = 0;
    bool in_use = false;  // steps may find it
  };
  // A link's error is the result's, a rank's is in the report.
  Result<AdapterReport> tell_ranks(AdapterLink& link, const AdapterOrder& order) const;
  Result<AdapterReport> read_on(AdapterLink& link, uint64_t handle, const Entry& entry) const;
  Result<AdapterReport> use_on(AdapterLink& link, uint64_t handle, const Entry& entry) const;
  Result<bool> begin_use(uint64_t handle);
  void send_drop(AdapterLink& link, uint64_t handle) const;
  void let_go(uint64_t handle);
  // Another than `last`; nullptr: there will be none.
  std::shared_ptr<AdapterLink> await_link(const std::shared_ptr<AdapterLink>& last);
  std::shared_ptr<Adapter> stand_in(uint64_t handle, const AdapterReport& report, const checkpoint::AdapterFile& file);

  const int64_t most_bytes_;
  const bool restarts_;
  std::mutex exchange_;         // of one order and its reports at a time
  mutable std::mutex writing_;  // messages whole; taken last
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<AdapterLink> link_;  // guarded by mutex_, like all below
  std::map<uint64_t, Entry> entries_;  // by handle: those that are there
  uint64_t last_handle_ = 0;
  bool closed_ = false;
};

}  // namespace quire::runner
