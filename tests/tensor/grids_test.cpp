#include "tensor/grids.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

// FNV-1a of the points' bytes, value 0 of point 0 first.
template <typename Grid>
uint64_t digest_of(const Grid& grid) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const auto point : grid) {
    for (size_t k = 0; k < sizeof(point); ++k) digest = (digest ^ ((point >> (8 * k)) & 0xff)) * 0x100000001b3;
  }
  return digest;
}

// The digests are those of the package gguf's grids: scripts/make_gguf_quant_data.py --grids.
TEST(Grids, EveryPointIsThatOfTheFormatsDefinition) {
  EXPECT_EQ(digest_of(kIq2XxsGrid), 0xab05d880babe6823);
  EXPECT_EQ(digest_of(kIq2XsGrid), 0x6853eeeddb7ea013);
  EXPECT_EQ(digest_of(kIq2SGrid), 0x2c1955b62f3d75bd);
  EXPECT_EQ(digest_of(kIq1Grid), 0xec28b6368f0c62e0);
  EXPECT_EQ(digest_of(kIq3XxsGrid), 0xe94d0633d4024cd5);
  EXPECT_EQ(digest_of(kIq3SGrid), 0x5d10ecbdf51ec43b);
}

}  // namespace
}  // namespace quire
