#include "base/status.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return invalid_argument("n is {}, expected an even number", n).with_param("n");
  return n / 2;
}

Result<int> quarter(int n) {
  QUIRE_ASSIGN_OR_RETURN(int h, half(n));
  return half(h);
}

TEST(Status, AnErrorTravelsThroughAssignOrReturnWithItsFieldAndMessage) {
  EXPECT_EQ(quarter(8).value(), 2);
  const Result<int> failed = quarter(6);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(failed.status().message(), "n is 3, expected an even number");
  EXPECT_EQ(failed.status().param(), "n");
}

TEST(Status, APrefixSaysWhere) {
  EXPECT_EQ(not_found("no key").with_prefix("config.json: ").message(), "config.json: no key");
}

}  // namespace
}  // namespace quire
