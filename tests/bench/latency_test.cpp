#include "bench/latency.h"

#include <gtest/gtest.h>

namespace quire::bench {
namespace {

TEST(LatencyCases, AreBatchesOfOneEngine) {
  const auto cases = latency_cases({.num_iters_warmup = 1, .num_iters = 7}, "32x1024x64,1x2048x1x5");
  ASSERT_TRUE(cases.ok()) << cases.status().message();
  ASSERT_EQ(cases->size(), 2u);
  const LatencyOptions& first = (*cases)[0];
  EXPECT_EQ(first.batch_size, 32);
  EXPECT_EQ(first.input_len, 1024);
  EXPECT_EQ(first.output_len, 64);
  EXPECT_EQ(first.num_iters, 7);
  EXPECT_EQ(first.num_iters_warmup, 1);
  EXPECT_EQ(case_name(first), "32x1024x64");
  const LatencyOptions& second = (*cases)[1];
  EXPECT_EQ(second.batch_size, 1);
  EXPECT_EQ(second.input_len, 2048);
  EXPECT_EQ(second.output_len, 1);
  EXPECT_EQ(second.num_iters, 5);
}

TEST(LatencyCases, ThatAreNoneAreNamed) {
  for (const char* wrong : {"", "32", "32x1024", "32x1024x", "x1024x64", "32x1024x64x2x1", "32x1024x64 ", "32x1024x64,",
                            "32xax64", "0x1024x64", "-1x1024x64", "99999999999999999999x1x1"}) {
    const auto cases = latency_cases({}, wrong);
    ASSERT_FALSE(cases.ok()) << wrong;
    EXPECT_EQ(cases.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(cases.status().message().find("--cases"), std::string::npos) << cases.status().message();
  }
}

}  // namespace
}  // namespace quire::bench
