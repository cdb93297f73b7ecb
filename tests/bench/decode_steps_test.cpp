#include "bench/decode_steps.h"

#include <gtest/gtest.h>

namespace quire::bench {
namespace {

engine::StepRecord step(double time, int32_t num_tokens, size_t num_runs, double wait) {
  engine::StepRecord record{.time = time, .num_tokens = num_tokens, .replayed = true, .wait = wait};
  record.draw_bytes = 100 * num_tokens;
  record.collect = wait / 4;
  record.runs.resize(num_runs);
  record.seconds[static_cast<size_t>(engine::Phase::kSample)] = 2 * wait;
  return record;
}

TEST(DecodeSteps, AreThoseOfOneTokenASequenceThatFollowEachOther) {
  engine::FlightRecorder recorder(8);
  recorder.record(step(0.0, 3, 1, 9));  // a prompt
  recorder.record(step(1.0, 3, 3, 1));
  recorder.record(step(3.0, 3, 3, 1.5));
  recorder.record(step(6.0, 3, 3, 2));
  recorder.record(step(9.0, 2, 2, 9));  // one has ended
  recorder.record(step(10.0, 3, 3, 9));
  const DecodeSteps steps = decode_steps(recorder, 3);
  EXPECT_EQ(steps.count, 2);
  EXPECT_EQ(steps.share_replayed, 1);
  EXPECT_EQ(steps.period, 2.5);
  EXPECT_EQ(steps.wait, 1.25);
  EXPECT_EQ(steps.host(), 1.25);
  EXPECT_EQ(steps.draw_bytes, 300);
  EXPECT_EQ(steps.collect, 1.25 / 4);
  EXPECT_EQ(steps.phases[static_cast<size_t>(engine::Phase::kSample)], 2.5);
  EXPECT_EQ(decode_steps(recorder, 7).count, 0);
  EXPECT_TRUE(decode_steps_line(decode_steps(recorder, 7)).empty());
}

}  // namespace
}  // namespace quire::bench
