// A worker: one rank of a model, in a process of its own, that carries out the plans it is sent.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "ops/backend.h"
#include "runner/rank_group.h"
#include "runner/worker_segment.h"
#include "types/engine_config.h"

namespace quire::runner {

using MakeBackend = std::function<Result<std::unique_ptr<ops::Backend>>(const EngineConfig& config)>;

// How a worker hears of its work and who the others are: through memory that they share, or by messages alone
// (network_workers.h). Any thread may call ask(), beat() and goes_on(), and end().
class WorkerChannel {
 public:
  virtual ~WorkerChannel() = default;
  virtual int rank() const = 0;
  virtual WorkerSegment::Shape shape() const = 0;
  // These wait until there is one, or room. Errors: unavailable where the group has ended.
  virtual Result<std::string> read_order() = 0;
  virtual Status write_result(std::string_view message) = 0;
  virtual Result<std::string> ask(std::string_view question) = 0;
  // The same of adapters, for another thread than the one that reads orders.
  virtual Result<std::string> read_adapter_order() = 0;
  virtual Status write_adapter_report(std::string_view message) = 0;
  // Of this rank's stage, with communicators that live as long as the channel. spin: how long they wait awake.
  virtual Result<RankGroup> join(const EngineConfig& config, std::chrono::microseconds spin) = 0;
  virtual bool goes_on() const = 0;
  virtual void end(std::string_view reason) = 0;
  // Called every 50 ms, also while a step takes long.
  virtual void beat() = 0;
};

// Is told by the first message what it is, loads its part, reports, and carries out plans until the group ends; that is
// no error. Errors have been reported to the engine's process where it listens still.
Status run_worker(WorkerChannel& channel, const MakeBackend& make_backend);
Status run_worker(const WorkerSegment& segment, int rank, const MakeBackend& make_backend);

}  // namespace quire::runner
