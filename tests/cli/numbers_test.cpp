// Numbers with letters behind them.
#include "cli/numbers.h"

#include <gtest/gtest.h>

namespace quire::cli {
namespace {

TEST(WholeNumber, LettersCountInThousandsAndCapitalsIn1024s) {
  EXPECT_EQ(whole_number("8192"), 8192);
  EXPECT_EQ(whole_number("8k"), 8000);
  EXPECT_EQ(whole_number("8K"), 8192);
  EXPECT_EQ(whole_number("1.5k"), 1500);
  EXPECT_EQ(whole_number("4G"), int64_t{4} << 30);
  EXPECT_EQ(whole_number("2t"), 2'000'000'000'000);
  EXPECT_EQ(whole_number("0"), 0);
}

TEST(WholeNumber, AnythingElseIsNone) {
  for (const char* text :
       {"", "k", "-1", "1.5", "0.0001k", "1e3", "8x", "8kk", "1.2.3", " 8", "99999999999999999999"}) {
    EXPECT_EQ(whole_number(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace quire::cli
