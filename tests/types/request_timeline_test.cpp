// The times of a request that several sequences share.
#include "types/request_timeline.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using std::chrono::milliseconds;
using Clock = RequestTimeline::Clock;

TEST(RequestTimeline, TheFirstThatBeginsCountsAndTheLastThatEnds) {
  const Clock::time_point start = Clock::now();
  const auto at = [&](int time) { return start + milliseconds(time); };
  RequestTimeline line;
  for (const int late : {0, 1}) line.arrived(at(late));
  for (const int late : {10, 15}) line.scheduled(at(late));
  for (const int time : {30, 40, 90, 80}) line.token(at(time));
  for (const int time : {95, 92}) line.finished(at(time));
  EXPECT_NEAR(line.in_queue(), 0.010, 1e-9);
  EXPECT_NEAR(line.to_first_token(), 0.030, 1e-9);
  EXPECT_NEAR(line.in_prefill(), 0.020, 1e-9);
  EXPECT_NEAR(line.in_decode(), 0.060, 1e-9);
  EXPECT_NEAR(line.in_inference(), 0.085, 1e-9);
  EXPECT_NEAR(line.end_to_end(), 0.095, 1e-9);
}

TEST(RequestTimeline, WhatHasNotComeToPassHasNoTime) {
  RequestTimeline line;
  line.arrived(Clock::now());
  line.finished(Clock::now());  // cancelled before its first step
  EXPECT_GE(line.end_to_end(), 0);
  for (const double time :
       {line.in_queue(), line.to_first_token(), line.in_prefill(), line.in_decode(), line.in_inference()}) {
    EXPECT_LT(time, 0);
  }
}

}  // namespace
}  // namespace quire
