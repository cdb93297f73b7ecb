#include "tests/cards/card.h"

#ifdef QUIRE_TEST_CUDA
#include "ops/cuda/cuda_backend.h"
#include "tests/cards/lent_backend.h"
#endif

namespace quire::cards {

bool is_emulated([[maybe_unused]] std::string_view backend) {
#ifdef QUIRE_TEST_EMULATED_DEVICE
  return is_card(backend);
#else
  return false;
#endif
}

#ifdef QUIRE_TEST_CUDA
namespace {

struct PoolKey {
  int host_threads;
  CardUse use;
  auto operator<=>(const PoolKey&) const = default;
};

std::unique_ptr<ops::Backend> make_own_card(const PoolKey& key) {
  auto card = ops::make_cuda_backend({.host_threads = key.host_threads,
                                      .batch_invariant = key.use.batch_invariant,
                                      .rounds_activations = key.use.rounds_activations,
                                      .attention = key.use.attention,
                                      .synchronous = true,
                                      .check_pointers = key.use.checked});
  return card.ok() ? std::move(card).value() : nullptr;
}

}  // namespace
#endif

std::unique_ptr<ops::Backend> make_card([[maybe_unused]] int host_threads, [[maybe_unused]] const CardUse& use) {
#if defined(QUIRE_TEST_EMULATED_DEVICE)
  return make_own_card({host_threads, use});  // whose scratch nobody has written to
#elif defined(QUIRE_TEST_CUDA)
  static auto& pool = *new BackendPool<PoolKey>(make_own_card);
  return pool.lend({host_threads, use});
#else
  return nullptr;
#endif
}

}  // namespace quire::cards
