// The trial of kernels of attention that are not quire's own: those that are right pass, others do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "ops/cuda/attention_trial.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_memory.h"

namespace quire::ops::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// FlashInfer's, whose answers something happens to.
class Altered final : public PromptAttention {
 public:
  enum class How { kNot, kOneNumber, kNothingWritten };
  Altered(How how, Allocator& memory)
      : how_(how), theirs_(make_prompt_attention(AttentionBackend::kAuto, {.major = 9}, memory, nullptr).value()) {}

  Attended attend(const PagedAttentionArgs& args, int recording, void* scratch, size_t scratch_bytes) override {
    if (how_ == How::kNothingWritten) return Attended::kPrompts;
    const Attended done = theirs_->attend(args, recording, scratch, scratch_bytes);
    if (done == Attended::kNothing) return done;
    ++computed;
    const float wrong = 0.7f;
    // The last of the last shape's prompts.
    if (how_ == How::kOneNumber && args.cache.dtype == DType::kF8E4M3 && args.window > 0) {
      const int64_t row = args.query_offsets.host[2] - 1;
      const int64_t at = (row + 1) * args.num_heads * args.cache.head_dim - 1;
      EXPECT_EQ(cudaMemcpy(args.out + at, &wrong, sizeof(wrong), cudaMemcpyHostToDevice), cudaSuccess);
    }
    return done;
  }
  int computed = 0;

 private:
  const How how_;
  const std::unique_ptr<PromptAttention> theirs_;
};

TEST(AttentionTrial, WhatIsRightPasses) {
  CudaAllocator memory(0);
  Altered attention(Altered::How::kNot, memory);
  const Status tried = compare_with_own(attention, memory, nullptr);
  EXPECT_TRUE(tried.ok()) << tried.message();
  EXPECT_GE(attention.computed, 10) << "kernels that were not tried";
}

TEST(AttentionTrial, OneWrongNumberOfTheLastShapeFails) {
  CudaAllocator memory(0);
  Altered attention(Altered::How::kOneNumber, memory);
  const Status tried = compare_with_own(attention, memory, nullptr);
  EXPECT_EQ(tried.code(), StatusCode::kInternal);
  EXPECT_THAT(tried.message(), HasSubstr("F8_E4M3, heads of 128, window 40"));
}

TEST(AttentionTrial, AnswersThatAreNotWrittenFail) {
  CudaAllocator memory(0);
  Altered attention(Altered::How::kNothingWritten, memory);
  EXPECT_EQ(compare_with_own(attention, memory, nullptr).code(), StatusCode::kInternal);
}

TEST(AttentionTrial, TheCardsOwnIsTriedAsAutoTakesIt) {
  const Status tried = try_attention(0);
  EXPECT_TRUE(tried.ok()) << tried.message();
  EXPECT_EQ(try_attention(99).code(), StatusCode::kUnavailable);
}

TEST(AttentionTrial, ABackendLeavesAloneWhatHasFailed) {
  int asked = 0;
  const auto description = [&](AttentionBackend attention, bool passes) {
    const auto backend = make_cuda_backend({.attention = attention, .attention_trial = [&asked, passes]() -> Status {
                                              ++asked;
                                              if (passes) return {};
                                              return internal_error("its process was killed by signal 6");
                                            }});
    EXPECT_TRUE(backend.ok()) << backend.status().message();
    return backend.ok() ? (*backend)->description() : std::string();
  };
  EXPECT_THAT(description(AttentionBackend::kAuto, true), HasSubstr("attention: auto"));
  EXPECT_THAT(description(AttentionBackend::kAuto, false), Not(HasSubstr("attention:")));
  EXPECT_EQ(asked, 2);
  // What was asked for by name is not tried.
  EXPECT_THAT(description(AttentionBackend::kFlashInfer, false), HasSubstr("attention: flashinfer"));
  EXPECT_THAT(description(AttentionBackend::kNative, false), Not(HasSubstr("attention:")));
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace quire::ops::cuda
