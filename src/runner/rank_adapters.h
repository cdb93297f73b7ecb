// The adapters of one rank of several: of each what is added to this rank's products. It does what it is told by the
// process that has the AdapterStore (adapter_ranks.h): that one decides who comes and who leaves.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runner/adapter_memory.h"
#include "runner/adapter_store.h"
#include "runner/adapter_table.h"
#include "runner/worker_messages.h"

namespace quire::runner {

class RankAdapters final : public AdapterTable {
 public:
  // The backend must outlive this. A device with memory of its own has most_bytes of it taken at once, if it has them.
  RankAdapters(AdapterHost host, const AdapterLimits& limits, ops::Backend& backend);
  bool has_memory() const;  // REQUIRES of all that follows: it is true

  // Reads an adapter, gives it a place and lets steps find it, or lets go of it. A report is due of each order but
  // those of the last kind. Called by one thread, beside the steps. May wait for a step's end, where what has left in
  // it has the place that is wanted.
  AdapterReport carry_out(const AdapterOrder& order);

  const Adapter* in_use(int32_t number) const override;

  // Around each step: what is let go of meanwhile stays until the step is done.
  void begin_step();
  void end_step();

 private:
  struct Held {
    std::shared_ptr<Adapter> adapter;
    int32_t number = 0;  // 0: steps do not find it yet
  };
  AdapterReport read(const AdapterOrder& order);
  AdapterReport use(const AdapterOrder& order);
  Status place(Adapter& adapter);
  void drop(uint64_t handle);

  const AdapterHost host_;
  const int64_t most_bytes_;
  ops::Backend& backend_;
  std::unique_ptr<AdapterMemory> device_memory_;  // of a device that has its own, else nullptr; outlives adapters

  mutable std::mutex mutex_;
  std::condition_variable step_done_;
  std::map<uint64_t, Held> held_;                        // by handle; guarded by mutex_, like all below
  std::vector<std::shared_ptr<const Adapter>> leaving_;  // when the step is done
  bool in_step_ = false;
};

}  // namespace quire::runner
