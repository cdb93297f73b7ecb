#include "tensor/keeping_allocator.h"

#include <map>
#include <new>

#include <gtest/gtest.h>

namespace quire {
namespace {

// Numbers in the place of memory, so that none comes twice.
class CountingAllocator final : public Allocator {
 public:
  Device device() const override { return {DeviceKind::kCpu, 0}; }
  void* allocate(size_t bytes) override {
    void* memory = reinterpret_cast<void*>(++last_ * 64);
    held[memory] = bytes;
    return memory;
  }
  void release(void* memory, size_t bytes) override {
    ASSERT_EQ(held.at(memory), bytes);
    held.erase(memory);
  }
  std::map<void*, size_t> held;

 private:
  uintptr_t last_ = 0;
};

TEST(KeepingAllocatorTest, WhatOneLeavesTheNextOfThatSizeHas) {
  CountingAllocator from;
  {
    KeepingAllocator keeping(from, /*most_bytes=*/1000);
    void* first = keeping.allocate(100);
    void* beside = keeping.allocate(100);
    EXPECT_NE(first, beside);
    keeping.release(first, 100);
    EXPECT_EQ(from.held.size(), 2) << "kept";
    EXPECT_EQ(keeping.allocate(100), first);
    EXPECT_NE(keeping.allocate(100), first) << "it is in use";
    EXPECT_EQ(from.held.size(), 3);
  }
}

TEST(KeepingAllocatorTest, KeepsTheLastTwoPiecesThatAreNotTooLarge) {
  CountingAllocator from;
  {
    KeepingAllocator keeping(from, /*most_bytes=*/1000);
    void* small = keeping.allocate(100);
    void* medium = keeping.allocate(1000);
    void* large = keeping.allocate(1001);
    void* other = keeping.allocate(999);
    keeping.release(small, 100);
    keeping.release(medium, 1000);
    EXPECT_EQ(from.held.count(small), 1);
    keeping.release(large, 1001);
    EXPECT_EQ(from.held.count(large), 0);
    keeping.release(nullptr, 0);
    keeping.release(other, 999);
    EXPECT_EQ(from.held.count(small), 0) << "it left first";
    EXPECT_EQ(keeping.allocate(1000), medium);
    EXPECT_EQ(keeping.allocate(999), other);
    keeping.release(medium, 1000);
    keeping.release(other, 999);
    EXPECT_EQ(from.held.size(), 2);
  }
  EXPECT_TRUE(from.held.empty());
}

// Of the host's memory, of which there is some for a number of pieces.
class FewPieces final : public Allocator {
 public:
  explicit FewPieces(int most) : most_(most) {}
  Device device() const override { return {DeviceKind::kCpu, 0}; }
  void* allocate(size_t bytes) override {
    if (taken == most_) return nullptr;
    ++taken;
    return ::operator new(bytes, kLine);
  }
  void release(void* memory, size_t /*bytes*/) override {
    --taken;
    ::operator delete(memory, kLine);
  }
  int taken = 0;

 private:
  static constexpr std::align_val_t kLine{64};
  const int most_;
};

TEST(KeepingAllocatorTest, APieceIsPreparedOnce) {
  FewPieces from(2);
  {
    KeepingAllocator keeping(from, /*most_bytes=*/1000);
    EXPECT_TRUE(keeping.prepare(100));
    EXPECT_TRUE(keeping.prepare(100));
    EXPECT_EQ(from.taken, 1) << "it was there";
    void* first = keeping.allocate(100);
    EXPECT_EQ(from.taken, 1) << "it is the one";
    EXPECT_FALSE(keeping.prepare(1001)) << "too large to be kept";
    EXPECT_EQ(from.taken, 1);
    EXPECT_TRUE(keeping.prepare(200));
    EXPECT_FALSE(keeping.prepare(300)) << "there is no memory";
    keeping.release(first, 100);
  }
  EXPECT_EQ(from.taken, 0);
}

}  // namespace
}  // namespace quire
