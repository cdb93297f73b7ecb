// How workers are started and ended: processes, where whoever makes an executor has a program to run.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "comm/shared_segment.h"
#include "runner/worker_segment.h"

namespace quire::runner {

class WorkerProcess {
 public:
  virtual ~WorkerProcess() = default;  // ends it, and waits until it is gone
  virtual int id() const = 0;
  // How it ended, for people ("was killed by signal 9"); nullopt: it runs.
  virtual std::optional<std::string> ended() = 0;
  // Whether it has ended, with code 0.
  virtual bool succeeded() { return false; }
  // Whether one of its threads could run: where it gives no sign of life nevertheless, others have the cores.
  virtual bool could_run() const { return false; }
};

class WorkerLauncher {
 public:
  virtual ~WorkerLauncher() = default;
  // A process that does run_worker() over this memory. It does not outlive the thread that calls this.
  virtual Result<std::unique_ptr<WorkerProcess>> launch(const comm::SharedSegment& memory,
                                                        const WorkerSegment::Shape& shape, int rank) = 0;
};

}  // namespace quire::runner
