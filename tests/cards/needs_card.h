// For tests of the whole engine on a card, which a program is linked with: a real one or the emulated one.
#pragma once

#include <gtest/gtest.h>

#include "ops/cuda/cuda_backend.h"

namespace quire::cards {

class NeedsCard : public testing::Test {
 protected:
  void SetUp() override {
    if (ops::cuda_device_count() == 0) GTEST_SKIP() << "this machine has no card";
  }
};

}  // namespace quire::cards
