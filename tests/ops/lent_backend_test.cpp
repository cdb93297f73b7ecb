// The backend that tests on a card share.
#include "tests/cards/lent_backend.h"

#include <gtest/gtest.h>

#include "ops/reference/reference_backend.h"

namespace quire::cards {
namespace {

TEST(LentBackends, AreOneBackendAUseWhoseOpsTheyCall) {
  int made = 0;
  BackendPool<int> pool([&](int use) -> std::unique_ptr<ops::Backend> {
    ++made;
    return use < 0 ? nullptr : ops::make_reference_backend();
  });
  for (int test = 0; test < 3; ++test) {
    const auto backend = pool.lend(0);
    ASSERT_NE(backend, nullptr);
    EXPECT_EQ(backend->description(), ops::make_reference_backend()->description());
    std::vector<float> values = {1, 2, 3};
    (*backend)(ops::ScaleArgs{.values = values.data(), .scale = 2.0f, .num_rows = 1, .size = 3});
    EXPECT_EQ(values, (std::vector<float>{2, 4, 6}));
    const std::vector<float> delta = {1, 1, 1};
    (*backend)(ops::AddArgs{.hidden = values.data(), .delta = delta.data(), .num_tokens = 1, .size = 3});
    EXPECT_EQ(values, (std::vector<float>{3, 5, 7}));
  }
  EXPECT_EQ(made, 1);
  EXPECT_NE(pool.lend(1), nullptr);
  EXPECT_EQ(made, 2);
  EXPECT_EQ(pool.lend(-1), nullptr);
  EXPECT_EQ(pool.lend(-1), nullptr) << "asked for once";
  EXPECT_EQ(made, 3);
}

}  // namespace
}  // namespace quire::cards
