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

TEST(Status, ACopySaysTheSameAndWhatWasMovedAwayIsOk) {
  Status first = data_loss("the file ends").with_param("model");
  Status copy = first;
  Status moved = std::move(first);
  EXPECT_TRUE(first.ok());  // NOLINT(bugprone-use-after-move)
  for (const Status* status : {&copy, &moved}) {
    EXPECT_EQ(status->code(), StatusCode::kDataLoss);
    EXPECT_EQ(status->message(), "the file ends");
    EXPECT_EQ(status->param(), "model");
  }
  const Status& same = copy;
  copy = same;
  EXPECT_EQ(copy.message(), "the file ends");
  copy = Status();
  EXPECT_TRUE(copy.ok());
  EXPECT_EQ(copy.message() + copy.param(), "");
  EXPECT_EQ(moved.message(), "the file ends");
}

}  // namespace
}  // namespace quire
