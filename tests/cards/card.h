// The card for tests whose parameter says "cuda": a real one, or the host in its place (tests/cuda_on_host).
#pragma once

#include <memory>
#include <string_view>

#include "ops/backend.h"
#ifdef QUIRE_TEST_CUDA
#include "ops/cuda/cuda_backend.h"
#endif

namespace quire::cards {

inline bool is_card(std::string_view backend) {
  return backend == "cuda";
}

// A card that the host plays, which takes its time.
inline bool is_played([[maybe_unused]] std::string_view backend) {
#ifdef QUIRE_TEST_PLAYED_CARD
  return is_card(backend);
#else
  return false;
#endif
}

// nullptr: there is none, or the tests were built without. An op is done when its call returns, as tests expect that
// read what it wrote.
// `checked`: an op that is given the host's ordinary memory ends the test.
inline std::unique_ptr<ops::Backend> make_card([[maybe_unused]] int host_threads, [[maybe_unused]] bool checked = false,
                                               [[maybe_unused]] bool batch_invariant = false) {
#ifdef QUIRE_TEST_CUDA
  auto card = ops::make_cuda_backend({.host_threads = host_threads,
                                      .batch_invariant = batch_invariant,
                                      .synchronous = true,
                                      .check_pointers = checked});
  if (card.ok()) return std::move(card).value();
#endif
  return nullptr;
}

}  // namespace quire::cards
