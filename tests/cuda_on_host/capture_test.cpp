// What cannot be captured: said, not the end, and the stream goes on.
#include <gtest/gtest.h>

#include <vector>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/graph_capture.h"
#include "ops/cuda/launch.h"
#include "refused_capture.h"

namespace quire::ops::cuda {
namespace {

class Captures : public ::testing::Test {
 protected:
  Captures() {
    backend_ = make_cuda_backend({.synchronous = true}).value();
    pinned_ = Buffer(backend_->host_allocator(), kCount * sizeof(float));
    std::fill_n(values(), kCount, 1.0f);
  }
  ~Captures() override { cuda_on_host::refuse_captured_call(-1); }
  float* values() { return pinned_.as<float>(); }
  void double_values() { (*backend_)(ScaleArgs{.values = values(), .scale = 2.0f, .num_rows = 1, .size = kCount}); }

  static constexpr int64_t kCount = 40;
  std::unique_ptr<Backend> backend_;
  Buffer pinned_;
};

TEST_F(Captures, AreOfKernelsThatHaveRunAtLeastOnce) {
  const auto recording = backend_->record([&] { double_values(); }, /*renews_attention=*/false);
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  std::fill_n(values(), kCount, 3.0f);
  backend_->replay(**recording, [](PagedAttentionArgs&) {});
  backend_->synchronise();
  EXPECT_EQ(values()[kCount - 1], 6.0f);
}

TEST_F(Captures, ThatAreRefusedLeaveTheBackendAsItWas) {
  double_values();
  for (const int call : {0, 1}) {
    cuda_on_host::refuse_captured_call(call);
    const auto refused = backend_->record(
        [&] {
          double_values();
          double_values();
        },
        /*renews_attention=*/true);
    ASSERT_FALSE(refused.ok()) << call;
    EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
    EXPECT_NE(refused.status().message().find("previous error during capture"), std::string::npos)
        << refused.status().message();
  }
  EXPECT_EQ(values()[0], 2.0f) << "nothing of a capture is done";
  double_values();
  EXPECT_EQ(values()[0], 4.0f);
  const auto recording = backend_->record([&] { double_values(); }, /*renews_attention=*/true);
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  backend_->replay(**recording, [](PagedAttentionArgs&) {});
  backend_->synchronise();
  EXPECT_EQ(values()[0], 8.0f);
}

}  // namespace
}  // namespace quire::ops::cuda
