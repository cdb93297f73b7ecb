// Weights of 16 and 32 bits that are converted while they are loaded.
#include "nn/weight_dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "nn/linear.h"
#include "ops/cpu/cpu_backend.h"
#include "tensor/stored_values.h"
#include "tests/nn/memory_checkpoint.h"

namespace quire::nn {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(FloatToHalf, GivesBackEveryHalf) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = half_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    } else {
      ASSERT_EQ(float_to_half(value), bits) << value;
    }
  }
}

TEST(FloatToHalf, RoundsToTheNearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float low = half_to_float(static_cast<uint16_t>(bits));
    const float high = bits + 1 == 0x7c00 ? 65536.0f : half_to_float(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;  // a float holds it
    ASSERT_EQ(float_to_half(middle), bits % 2 == 0 ? bits : bits + 1) << middle;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 0.0f)), bits) << middle;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 1e9f)), bits + 1) << middle;
    ASSERT_EQ(float_to_half(-std::nextafter(middle, 0.0f)), bits | 0x8000) << middle;
  }
  EXPECT_EQ(float_to_half(1e30f), 0x7c00);
  EXPECT_EQ(float_to_half(1e-30f), 0);
}

TEST(WeightDtype, IsATypeOfWeightsUnlessTheyStayAsTheyAreStored) {
  EXPECT_EQ(wanted_dtype(WeightDType::kAuto), std::nullopt);
  EXPECT_EQ(wanted_dtype(WeightDType::kFloat32), DType::kF32);
  EXPECT_EQ(wanted_dtype(WeightDType::kFloat16), DType::kF16);
  EXPECT_EQ(wanted_dtype(WeightDType::kBFloat16), DType::kBF16);
}

class ConvertingLoader : public testing::Test {
 protected:
  ConvertingLoader() : backend_(std::move(*ops::make_cpu_backend({.threads = 2, .isa = Isa::kPortable}))) {}

  void add(const std::string& name, const Shape& shape, float value) {
    checkpoint_.add(name, DType::kF32, shape,
                    stored_bytes(std::vector<float>(static_cast<size_t>(shape.num_elements()), value)));
  }

  std::unique_ptr<ops::Backend> backend_;
  MemoryCheckpoint checkpoint_;
};

TEST_F(ConvertingLoader, PlansWhatItLoadsAndSaysWhatItConvertedAndWhatNot) {
  add("a.weight", {64, 96}, 1.5f);
  checkpoint_.add("b.weight", DType::kQ4_0, {64, 96}, std::vector<uint8_t>(64 * 96 / 32 * 18));
  int64_t planned = 0;
  for (const Loader::Mode mode : {Loader::Mode::kPlan, Loader::Mode::kLoad}) {
    Loader loader(mode, checkpoint_, *backend_, Quantization::kNone, DType::kBF16);
    const Linear a(loader, "a", 96, 64);
    const Linear b(loader, "b", 96, 64);
    ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
    EXPECT_EQ(loader.converted().to_string(),
              "1 weights of 24.0 KiB to 12.0 KiB; 1 weights of 3.4 KiB stay in their own format (Q4_0)");
    if (mode == Loader::Mode::kPlan) {
      planned = loader.bytes();
    } else {
      EXPECT_EQ(loader.bytes(), planned);
    }
  }
}

TEST_F(ConvertingLoader, WithoutADtypeSaysNothing) {
  add("a.weight", {64, 96}, 1.5f);
  Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_);
  const Linear a(loader, "a", 96, 64);
  EXPECT_THAT(loader.converted().to_string(), IsEmpty());
}

TEST_F(ConvertingLoader, ATableHasMemoryOfItsOwn) {
  add("embed.weight", {32, 16}, 0.1f);
  Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_, Quantization::kNone, DType::kF16);
  const ops::ResidentTable table = loader.table("embed.weight", {32, 16});
  ASSERT_TRUE(loader.finish({}).ok());
  EXPECT_EQ(table.view.dtype, DType::kF16);
  EXPECT_NE(table.memory, nullptr);
  EXPECT_EQ(stored_value(DType::kF16, table.view.data, 5), half_to_float(float_to_half(0.1f)));
  EXPECT_EQ(loader.bytes(), 32 * 16 * 2);
}

TEST_F(ConvertingLoader, NumbersThatFloat16HasNoRoomForAreRefused) {
  add("a.weight", {64, 96}, 1e6f);
  Loader half(Loader::Mode::kLoad, checkpoint_, *backend_, Quantization::kNone, DType::kF16);
  const Linear a(half, "a", 96, 64);
  EXPECT_EQ(half.finish({}).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(half.finish({}).message(), HasSubstr("choose bfloat16"));
  Loader bfloat(Loader::Mode::kLoad, checkpoint_, *backend_, Quantization::kNone, DType::kBF16);
  const Linear same(bfloat, "a", 96, 64);
  EXPECT_TRUE(bfloat.finish({}).ok());
}

TEST_F(ConvertingLoader, RoutersStayExact) {
  add("a.weight", {64, 96}, 1.5f);
  Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_, Quantization::kNone, DType::kBF16);
  const StoredWeight stored = loader.weight({"a.weight", {64, 96}});
  const auto packed = loader.place({&stored, 1}, WeightRole::kExact);
  ASSERT_EQ(packed.size(), 1u);
  EXPECT_EQ(packed.front()->dtype(), DType::kF32);
}

}  // namespace
}  // namespace quire::nn
