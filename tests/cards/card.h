// The card for tests whose parameter says "cuda": a real one, or the host in its place (tests/cuda_on_host). It is the
// program's choice, which compiles card.cpp for one of them.
#pragma once

#include <memory>
#include <string_view>

#include "ops/backend.h"
#include "types/engine_choices.h"

namespace quire::cards {

inline bool is_card(std::string_view backend) {
  return backend == "cuda";
}

// The emulated device, which takes its time.
bool is_emulated(std::string_view backend);

struct CardUse {
  bool checked = false;  // an op that is given the host's ordinary memory ends the test
  bool batch_invariant = false;
  bool rounds_activations = true;  // to 8 bits, where weights have them
  AttentionBackend attention = AttentionBackend::kAuto;
  auto operator<=>(const CardUse&) const = default;
};

// nullptr: there is none or none that has such attention, or the tests were built without. An op is done when its call
// returns, as tests expect that read what it wrote. A real card has one backend a use, lent to one test after the
// other.
std::unique_ptr<ops::Backend> make_card(int host_threads, const CardUse& use = {});

}  // namespace quire::cards
