#include "runner/buddies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <vector>

namespace quire::runner {
namespace {

TEST(Buddies, GiveTheSmallestPowerOfTwoThatHoldsWhatIsAskedFor) {
  Buddies places(64, 4, 16);
  EXPECT_EQ(places.take(1).size, 4);
  EXPECT_EQ(places.take(5).size, 8);
  EXPECT_EQ(places.take(16).size, 16);
  EXPECT_EQ(places.num_free(), 64 - 4 - 8 - 16);
}

TEST(Buddies, AreOneAgainWhenBothAreGivenBack) {
  Buddies places(16, 4, 16);
  std::vector<Buddies::Place> all;
  for (int i = 0; i < 4; ++i) all.push_back(places.take(4));
  EXPECT_EQ(places.take(1).size, 0) << "there is no room";
  for (const Buddies::Place& place : all) places.give_back(place);
  EXPECT_EQ(places.take(16).size, 16);
}

TEST(Buddies, PlacesLieApartWhateverIsTakenAndGivenBack) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  constexpr int64_t kSize = 4096;
  constexpr int64_t kLargest = 512;
  Buddies places(kSize, 8, kLargest);
  std::vector<Buddies::Place> held;
  int refused = 0;
  for (int step = 0; step < 4000; ++step) {
    if (!held.empty() && random() % 100 < 45) {
      std::swap(held[random() % held.size()], held.back());
      places.give_back(held.back());
      held.pop_back();
    } else {
      const auto units = static_cast<int64_t>(1 + random() % (random() % 4 == 0 ? kLargest : 40));
      const Buddies::Place place = places.take(units);
      if (place.size == 0) {
        ++refused;
      } else {
        ASSERT_EQ(place.size, std::max<int64_t>(8, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(units)))));
        ASSERT_EQ(place.begin % place.size, 0);
        held.push_back(place);
      }
    }
    std::ranges::sort(held, {}, &Buddies::Place::begin);
    int64_t end = 0;
    int64_t taken = 0;
    for (const Buddies::Place& place : held) {
      ASSERT_GE(place.begin, end);
      end = place.begin + place.size;
      taken += place.size;
    }
    ASSERT_LE(end, kSize);
    ASSERT_EQ(places.num_free(), kSize - taken);
  }
  EXPECT_GT(refused, 0);
  for (const Buddies::Place& place : held) places.give_back(place);
  for (int64_t i = 0; i < kSize / kLargest; ++i) EXPECT_EQ(places.take(kLargest).size, kLargest);
}

// What EditLists counts on: of n stretches one is free while fewer than n places are held, wherever they lie.
TEST(Buddies, OneOfTheLargestIsFreeWhileFewerThanThereAreAreHeld) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    Buddies places(8 * 64, 1, 64);
    std::vector<Buddies::Place> held;
    while (true) {  // until there is no room
      const Buddies::Place place = places.take(static_cast<int64_t>(1 + random() % 64));
      if (place.size == 0) break;
      held.push_back(place);
    }
    std::ranges::shuffle(held, random);
    while (held.size() > 7) {
      places.give_back(held.back());
      held.pop_back();
    }
    EXPECT_EQ(places.take(64).size, 64);
  }
}

}  // namespace
}  // namespace quire::runner
