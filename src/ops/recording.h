// The part of a backend that is about when ops run: recorded and replayed as one (CUDA graphs), or on a side stream.
#pragma once

#include <memory>

#include "base/function_ref.h"
#include "base/status.h"
#include "ops/paged_attention.h"

namespace quire::ops {

// Calls of ops that were taken down once, to be run again.
class OpRecording {
 public:
  virtual ~OpRecording() = default;
};

class Recorder {
 public:
  virtual ~Recorder() = default;

  // Whether calls can be recorded. It pays where each call costs the host time for which the device waits.
  virtual bool can_record() const { return false; }
  // Records the ops that `body` calls, without running those. A recording keeps their pointers, their sizes, and
  // whatever they decided by the host's side of a Mirrored. Numbers on the device are read when the recording is
  // replayed. renews_attention: calls of attention are kept apart from the recording and made anew in each replay.
  // Errors: resource_exhausted where there is no memory for it; unavailable where they cannot be recorded, after which
  // ops run as before. REQUIRES: can_record(); the same ops have run once before, for other numbers of the host's;
  // running them again, which this does once unless it renews attention, changes nothing; `body` copies nothing between
  // host and device, but by copy_to_host() and copy_to_device(), and does not wait.
  virtual Result<std::unique_ptr<OpRecording>> record(FunctionRef<void()> body, bool renews_attention);
  // Runs a recording, in its turn with the ops. It may be destroyed when all its replays are done.
  // renew: changes the recorded arguments of each kept call of attention to those of this step.
  virtual void replay(const OpRecording& recording, FunctionRef<void(PagedAttentionArgs& args)> renew);

  // The host's own work in its turn with the ops: `function` runs when all before it is done, on whatever thread, and
  // what is called later waits for it. It may be recorded, and runs once more in each replay. It calls nothing of the
  // backend. REQUIRES: `argument` is there until then.
  virtual void call_on_host(void (*function)(const void* argument), const void* argument) { function(argument); }

  // Waits for what was called before, runs the ops of `body` and waits for them. Returns the seconds from the start of
  // the first to the end of the last, by the device's own clock where it has one.
  virtual double seconds_of(FunctionRef<void()> body);

  // Runs the ops of `body`, which may only copy blocks, on a side stream: they begin when everything called before is
  // done, in the order of the calls, and what is called later does not wait for them, until wait_for() the same mark.
  // mark: the caller's number for them, from 0, as small as may be; a later call may use it again.
  virtual void on_side_stream(int /*mark*/, FunctionRef<void()> body) { body(); }
  // Not while ops are recorded. REQUIRES: a call of on_side_stream() with this mark.
  virtual void wait_for(int /*mark*/) {}
};

}  // namespace quire::ops
