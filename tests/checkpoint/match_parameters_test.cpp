// Every parameter accounted for.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/file_writers.h"

namespace quire::checkpoint {
namespace {

using testing::HasSubstr;
using testing::Not;

class MatchParametersTest : public testing::Test {
 protected:
  // A checkpoint of float32 [2] tensors, but "ids", which is an I32.
  void open(const std::vector<std::string>& names) {
    std::string header;
    uint64_t offset = 0;
    for (const std::string& name : names) {
      const uint64_t bytes = 8;
      header +=
          (header.empty() ? "{" : ",") + entry(name, name == "ids" ? "I32" : "F32", "[2]", offset, offset + bytes);
      offset += bytes;
    }
    write_small_directory(directory_.path());
    write_file(directory_.path() / "model.safetensors", safetensors(header + "}", std::string(offset, '\0')));
    auto opened = Checkpoint::open(directory_.path().string());
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    checkpoint_ = *opened;
  }
  Status match(const std::vector<ParameterSpec>& specs, const std::vector<std::string_view>& ignored = {}) {
    return match_parameters(*checkpoint_, specs, ignored);
  }

  std::shared_ptr<const Checkpoint> checkpoint_;

 private:
  TemporaryDirectory directory_;
};

TEST_F(MatchParametersTest, GivenExactlyTheDeclaredTensorsThenAllIsWell) {
  open({"a", "b"});
  EXPECT_TRUE(match({{"a", {2}}, {"b", {2}}}).ok());
  EXPECT_TRUE(match({{"a", {2}}, {"b", {2}}, {"a", {2}}}).ok()) << "two layers may share a parameter";
}

TEST_F(MatchParametersTest, GivenAMissingTensorThenItIsNamedUnlessItIsOptional) {
  open({"a"});
  const Status status = match({{"a", {2}}, {"b", {2}}});
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("1 missing: b"));
  EXPECT_TRUE(match({{"a", {2}}, {"b", {2}, /*optional=*/true}}).ok());
}

TEST_F(MatchParametersTest, GivenAnExtraTensorThenItIsNamedUnlessItsSuffixIsIgnored) {
  open({"a", "x.rotary_emb.inv_freq"});
  const Status status = match({{"a", {2}}});
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("1 that the model does not know: \"x.rotary_emb.inv_freq\""));
  EXPECT_TRUE(match({{"a", {2}}}, {".rotary_emb.inv_freq"}).ok());
}

TEST_F(MatchParametersTest, GivenAnotherShapeThenBothShapesAreNamedEvenWhereItIsOptional) {
  open({"a"});
  for (const bool optional : {false, true}) {
    const Status status = match({{"a", {3, 1}, optional}});
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("a (found [2], expected [3, 1])"));
  }
}

TEST_F(MatchParametersTest, GivenIntegersWhereAParameterIsExpectedThenTheyAreRefused) {
  open({"ids"});
  EXPECT_THAT(match({{"ids", {2}}}).message(), HasSubstr("of a type that is no parameter's: ids (I32)"));
  EXPECT_TRUE(match({}, {"ids"}).ok());
}

TEST_F(MatchParametersTest, GivenPartsThatAreLeftAloneThenTheyAreCountedByTheirPrefixes) {
  open({"a", "vision.x", "vision.y", "blk.2.z"});
  const std::vector<std::string_view> others = {"vision.", "blk.2.", "absent."};
  EXPECT_TRUE(match_parameters(*checkpoint_, std::vector<ParameterSpec>{{"a", {2}}}, {}, others).ok());
  EXPECT_EQ(describe_left_alone(*checkpoint_, others), "2 tensors (0.0 MB) of vision., 1 tensor (0.0 MB) of blk.2.");
  EXPECT_EQ(describe_left_alone(*checkpoint_, {}), "");
}

TEST_F(MatchParametersTest, GivenManyMisfitsThenEightOfEachKindAreListed) {
  open({"x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9"});
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 9; ++i) specs.push_back({fmt::format("m{}", i), {2}});
  const Status status = match(specs);
  EXPECT_THAT(status.message(), HasSubstr("9 missing: m0, m1, m2, m3, m4, m5, m6, m7 and 1 more"));
  EXPECT_THAT(status.message(), HasSubstr("10 that the model does not know: \"x0\""));
  EXPECT_THAT(status.message(), HasSubstr("\"x7\" and 2 more"));
  EXPECT_THAT(status.message(), Not(HasSubstr("m8")));
}

}  // namespace
}  // namespace quire::checkpoint
