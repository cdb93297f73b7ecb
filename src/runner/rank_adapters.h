// The adapters of one rank of several: of each what is added to this rank's products. It does what it is told by the
// process that has the AdapterStore (adapter_ranks.h): that one decides who comes and who leaves.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runner/adapter_store.h"
#include "runner/adapter_table.h"
#include "runner/worker_messages.h"

namespace quire::runner {

class RankAdapters final : public AdapterTable {
 public:
  // The backend must outlive this.
  RankAdapters(AdapterHost host, const AdapterLimits& limits, ops::Backend& backend);

  // Reads an adapter, lets steps find it, or lets go of it. A report is due of each order but those of the last kind.
  // Called by one thread, beside the steps.
  AdapterReport carry_out(const AdapterOrder& order);

  const Adapter* in_use(int32_t number) const override;

  // Around each step: what is let go of meanwhile stays until the step is done.
  void begin_step();
  void end_step();

 private:
  struct Held {
    std::shared_ptr<const Adapter> adapter;
    int32_t number = 0;  // 0: steps do not find it yet
  };
  AdapterReport read(const AdapterOrder& order);

  const AdapterHost host_;
  const int64_t most_bytes_;
  ops::Backend& backend_;

  mutable std::mutex mutex_;
  std::map<uint64_t, Held> held_;                        // by handle; guarded by mutex_, like all below
  std::vector<std::shared_ptr<const Adapter>> leaving_;  // when the step is done
  bool in_step_ = false;
};

}  // namespace quire::runner
