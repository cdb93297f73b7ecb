// A card that does nothing, for measuring the host's own time.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

namespace quire::cuda_on_host {

// From here on the card has so many bytes of memory, all zeros for ever: launches, replays and copies to it return at
// once, copies from it bring zeros. REQUIRES: nothing has been asked of the card yet; one thread asks at a time.
void make_card_idle(size_t memory_bytes);

// What an idle card was asked to do.
struct Call {
  enum Kind { kLaunch, kReplay, kUpload, kDownload, kRecordEvent, kWait, kWaitForDownload, kKinds } kind;
  std::chrono::steady_clock::time_point at;  // of its end
};
// All since it is idle; whoever reads them may clear them.
std::vector<Call>& calls();
void note(Call::Kind kind);

}  // namespace quire::cuda_on_host
