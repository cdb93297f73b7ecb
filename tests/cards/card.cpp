#include "tests/cards/card.h"

#ifdef QUIRE_TEST_CUDA
#include "ops/cuda/cuda_backend.h"
#endif

namespace quire::cards {

bool is_played([[maybe_unused]] std::string_view backend) {
#ifdef QUIRE_TEST_PLAYED_CARD
  return is_card(backend);
#else
  return false;
#endif
}

std::unique_ptr<ops::Backend> make_card([[maybe_unused]] int host_threads, [[maybe_unused]] const CardUse& use) {
#ifdef QUIRE_TEST_CUDA
  auto card = ops::make_cuda_backend({.host_threads = host_threads,
                                      .batch_invariant = use.batch_invariant,
                                      .rounds_activations = use.rounds_activations,
                                      .attention = use.attention,
                                      .synchronous = true,
                                      .check_pointers = use.checked});
  if (card.ok()) return std::move(card).value();
#endif
  return nullptr;
}

}  // namespace quire::cards
