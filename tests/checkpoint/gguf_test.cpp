// Right GGUF files: what the views show, what names and configuration say.
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_description.h"
#include "tests/checkpoint/file_writers.h"

namespace quire::checkpoint {
namespace {

using testing::ElementsAre;
using enum GgufValueType;

class GgufTest : public testing::Test {
 protected:
  std::shared_ptr<const Checkpoint> open(const GgufWriter& writer) {
    auto checkpoint = Checkpoint::open(write_file(directory_.path() / "model.gguf", writer.build()));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    return checkpoint.ok() ? *checkpoint : nullptr;
  }

 private:
  TemporaryDirectory directory_;
};

std::string bytes_of(const TensorView& view) {
  return {static_cast<const char*>(view.data), static_cast<size_t>(view.bytes())};
}

class SplitGgufTest : public testing::Test {
 protected:
  static constexpr int kParts = 3;

  static GgufWriter& numbered(GgufWriter& writer, uint16_t number, uint16_t count = kParts) {
    return writer.number<uint16_t>("split.no", kUint16, number).number<uint16_t>("split.count", kUint16, count);
  }
  // A part without metadata of its own.
  static GgufWriter part(uint16_t number) {
    GgufWriter writer;
    return numbered(writer, number);
  }
  std::string write(int number, const GgufWriter& writer) {
    const std::string name = "model-0000" + std::to_string(number) + "-of-00003.gguf";
    return write_file(directory_.path() / name, writer.build());
  }
  // The small model with its tensors in three files. Returns the first's path.
  std::string write_all(int32_t total = 5) {
    GgufWriter first = small_gguf();
    const std::string path = write(1, numbered(first, 0).number<int32_t>("split.tensors.count", kInt32, total));
    write(2, part(1).tensor("blk.1.attn_norm.weight", {32}, 0, std::string(32 * 4, '\x05')));
    write(3, part(2).tensor("blk.2.attn_norm.weight", {32}, 0, std::string(32 * 4, '\x06')));
    return path;
  }

  TemporaryDirectory directory_;
};

TEST_F(SplitGgufTest, GivenTheFirstPartThenTheTensorsOfAllAreFound) {
  const auto checkpoint = Checkpoint::open(write_all());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ((*checkpoint)->tensors().size(), 5u);
  EXPECT_TRUE((*checkpoint)->vocabulary().has_value());
  const CheckpointTensor* last = (*checkpoint)->find("model.layers.2.input_layernorm.weight");
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(bytes_of(last->view), std::string(32 * 4, '\x06'));
}

TEST_F(SplitGgufTest, GivenAPartThatIsMissingThenItIsNamed) {
  const std::string path = write_all();
  std::filesystem::remove(directory_.path() / "model-00003-of-00003.gguf");
  const auto checkpoint = Checkpoint::open(path);
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(checkpoint.status().message(), testing::HasSubstr("model-00003-of-00003.gguf"));
}

TEST_F(SplitGgufTest, GivenAPartOfAnotherPlaceOrModelThenItIsRefused) {
  const std::string path = write_all();
  write(3, part(1).tensor("blk.2.attn_norm.weight", {32}, 0, std::string(32 * 4, '\x06')));
  EXPECT_THAT(Checkpoint::open(path).status().message(),
              testing::HasSubstr("model-00003-of-00003.gguf: metadata says part 1 of 3"));
  write(3, GgufWriter());
  EXPECT_THAT(Checkpoint::open(path).status().message(), testing::HasSubstr("expected part 2 of 3"));
}

TEST_F(SplitGgufTest, GivenTheSameTensorTwiceOrFewerThanAnnouncedThenItIsRefused) {
  const std::string path = write_all();
  write(3, part(2).tensor("blk.1.attn_norm.weight", {32}, 0, std::string(32 * 4, '\x06')));
  EXPECT_EQ(Checkpoint::open(path).status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(Checkpoint::open(write_all(6)).status().message(),
              testing::HasSubstr("\"split.tensors.count\" is 6, but the 3 parts have 5 tensors"));
}

class GgufVersionTest : public GgufTest, public testing::WithParamInterface<uint32_t> {};

TEST_P(GgufVersionTest, GivenAFileThenEveryTensorIsFoundByBothNamesWithItsBytes) {
  GgufWriter writer = small_gguf();
  writer.version = GetParam();
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->format(), Format::kGguf);
  ASSERT_EQ(checkpoint->tensors().size(), 3u);

  const CheckpointTensor* query = checkpoint->find("model.layers.0.self_attn.q_proj.weight");
  ASSERT_NE(query, nullptr);
  EXPECT_EQ(query->stored_name, "blk.0.attn_q.weight");
  EXPECT_EQ(query->view.dtype, DType::kQ4_0);
  EXPECT_EQ(query->view.shape, (Shape{32, 32}));
  EXPECT_EQ(bytes_of(query->view), std::string(32 * 18, '\x02'));

  const CheckpointTensor* embedding = checkpoint->find("model.embed_tokens.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->view.shape, (Shape{4, 32})) << "dimensions are turned outermost first";
  EXPECT_EQ(bytes_of(embedding->view), std::string(32 * 4 * 4, '\x01'));
  EXPECT_EQ(checkpoint->find("blk.0.attn_q.weight"), nullptr);
  EXPECT_EQ(checkpoint->total_tensor_bytes(), 32 * 18 + 32 * 4 * 4 + 32 * 4);
}

INSTANTIATE_TEST_SUITE_P(Versions, GgufVersionTest, testing::Values(2u, 3u));

TEST_F(GgufTest, GivenTheFileIsDeletedThenTheViewsStayReadable) {
  auto directory = std::make_unique<TemporaryDirectory>();
  const std::string path = write_file(directory->path() / "model.gguf", small_gguf().build());
  const auto checkpoint = Checkpoint::open(path);
  ASSERT_TRUE(checkpoint.ok());
  directory.reset();
  EXPECT_EQ(bytes_of((*checkpoint)->find("model.norm.weight")->view), std::string(32 * 4, '\x03'));
}

struct TypeCase {
  uint32_t id;
  DType dtype;
  size_t row_bytes;  // of `values` values
  uint64_t values = 64;
};
class GgufDtypeTest : public GgufTest, public testing::WithParamInterface<TypeCase> {};

TEST_P(GgufDtypeTest, GivenATypeThenTheViewHasItsBlocks) {
  const TypeCase type = GetParam();
  std::string data(2 * type.row_bytes, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7);
  GgufWriter writer = small_gguf();
  writer.tensor("x", {type.values, 2}, type.id, data);
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  const CheckpointTensor* tensor = checkpoint->find("x");
  ASSERT_NE(tensor, nullptr) << "an unknown name stays as it is stored";
  EXPECT_EQ(tensor->view.dtype, type.dtype);
  EXPECT_EQ(bytes_of(tensor->view), data);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->view.data) % 32, 0u);
}

INSTANTIATE_TEST_SUITE_P(Types, GgufDtypeTest,
                         testing::Values(TypeCase{0, DType::kF32, 256}, TypeCase{1, DType::kF16, 128},
                                         TypeCase{30, DType::kBF16, 128}, TypeCase{2, DType::kQ4_0, 36},
                                         TypeCase{3, DType::kQ4_1, 40}, TypeCase{8, DType::kQ8_0, 68},
                                         TypeCase{6, DType::kQ5_0, 44}, TypeCase{7, DType::kQ5_1, 48},
                                         TypeCase{10, DType::kQ2_K, 84, 256}, TypeCase{11, DType::kQ3_K, 110, 256},
                                         TypeCase{12, DType::kQ4_K, 144, 256}, TypeCase{13, DType::kQ5_K, 352, 512},
                                         TypeCase{14, DType::kQ6_K, 210, 256}, TypeCase{20, DType::kIQ4_NL, 36},
                                         TypeCase{23, DType::kIQ4_XS, 272, 512}, TypeCase{39, DType::kMXFP4, 34},
                                         TypeCase{15, DType::kQ8_K, 292, 256}, TypeCase{16, DType::kIQ2_XXS, 66, 256},
                                         TypeCase{17, DType::kIQ2_XS, 148, 512}, TypeCase{18, DType::kIQ3_XXS, 98, 256},
                                         TypeCase{19, DType::kIQ1_S, 50, 256}, TypeCase{21, DType::kIQ3_S, 110, 256},
                                         TypeCase{22, DType::kIQ2_S, 82, 256}, TypeCase{29, DType::kIQ1_M, 112, 512},
                                         TypeCase{34, DType::kTQ1_0, 54, 256}, TypeCase{35, DType::kTQ2_0, 66, 256},
                                         TypeCase{40, DType::kNVFP4, 36}),
                         [](const auto& type) { return std::string(name(type.param.dtype)); });

TEST_F(GgufTest, GivenAnotherAlignmentThenTheDataIsReadFromThere) {
  GgufWriter writer;
  writer.alignment = 128;
  writer.string("general.architecture", "other").u32("general.alignment", 128);
  writer.tensor("x", {2}, 0, checkpoint::bytes_of<float>({1, 2})).tensor("y", {1}, 0, checkpoint::bytes_of<float>({3}));
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(static_cast<const float*>(checkpoint->find("x")->view.data)[1], 2.0f);
  EXPECT_EQ(static_cast<const float*>(checkpoint->find("y")->view.data)[0], 3.0f);
}

TEST_F(GgufTest, GivenEveryValueTypeThenTheFileOpens) {
  GgufWriter writer = small_gguf();
  writer.number<uint8_t>("u8", kUint8, 1).number<int8_t>("i8", kInt8, -1).number<uint16_t>("u16", kUint16, 1);
  writer.number<int16_t>("i16", kInt16, -1).number<int32_t>("i32", kInt32, -1).number<uint64_t>("u64", kUint64, 1);
  writer.number<int64_t>("i64", kInt64, -1).number<double>("f64", kFloat64, 1).boolean("bool", 0);
  writer.numbers<double>("doubles", kFloat64, {1, 2}).numbers<uint8_t>("bools", kBool, {0, 1}).strings("none", {});
  EXPECT_NE(open(writer), nullptr);
}

TEST_F(GgufTest, GivenAModelThenItIsDescribedByItsMetadataAndThereIsNoConfigJson) {
  const auto checkpoint = open(small_gguf());
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_TRUE(checkpoint->config().empty());
  ASSERT_NE(checkpoint->gguf(), nullptr);
  EXPECT_EQ(checkpoint->gguf()->architecture, "llama");
  EXPECT_EQ(checkpoint->gguf()->model_class, "LlamaForCausalLM");
  EXPECT_EQ(*checkpoint->gguf()->metadata.integer("llama.block_count"), 1);
  EXPECT_EQ(checkpoint->generation_config(), boost::json::parse(R"({"eos_token_id": [1]})").as_object());
}

TEST_F(GgufTest, GivenNumbersWithoutSenseThenTheyAreLeftToTheModel) {
  GgufWriter writer = small_gguf();
  writer.remove("llama.attention.head_count").u32("llama.attention.head_count", 0);
  writer.remove("llama.block_count").u32("llama.block_count", 1'000'000'000);
  writer.remove("llama.rope.freq_base").f32("llama.rope.freq_base", NAN);
  EXPECT_NE(open(writer), nullptr);
}

TEST_F(GgufTest, GivenAdviceOnSamplingThenItIsThatOfAGenerationConfig) {
  GgufWriter writer = small_gguf();
  writer.f32("general.sampling.temp", 0.25f).f32("general.sampling.top_p", 0.75f).f32("general.sampling.min_p", 0.0f);
  writer.number("general.sampling.top_k", GgufValueType::kInt32, int32_t{20});
  writer.f32("general.sampling.penalty_repeat", 1.5f).f32("general.sampling.xtc_threshold", 0.5f);
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->generation_config(), boost::json::parse(R"({"eos_token_id": [1], "temperature": 0.25,
    "top_p": 0.75, "min_p": 0.0, "repetition_penalty": 1.5, "top_k": 20})")
                                                 .as_object())
      << boost::json::serialize(checkpoint->generation_config());
}

TEST_F(GgufTest, GivenAnOutputMatrixAndBiasesThenTheyHaveTheirNames) {
  GgufWriter writer = small_gguf();
  writer.tensor("output.weight", {32, 4}, 0, std::string(512, 'x'));
  writer.tensor("blk.0.attn_q.bias", {8}, 0, std::string(32, 'x'));
  writer.tensor("blk.0.ffn_up.bias", {8}, 0, std::string(32, 'x'));
  writer.tensor("rope_freqs.weight", {4}, 0, std::string(16, 'x'));
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  for (const char* name : {"lm_head.weight", "model.layers.0.self_attn.q_proj.bias", "model.layers.0.mlp.up_proj.bias",
                           "model.rope_freqs.weight"}) {
    EXPECT_NE(checkpoint->find(name), nullptr) << name;
  }
}

TEST_F(GgufTest, GivenExpertsThenTheArchitectureIsTheirs) {
  GgufWriter writer = small_gguf();
  writer.u32("llama.expert_count", 8).u32("llama.expert_used_count", 2);
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->gguf()->model_class, "MixtralForCausalLM");
}

TEST_F(GgufTest, GivenAnArchitectureWithoutATableThenTheFileStillOpens) {
  GgufWriter writer = small_gguf();
  writer.remove("general.architecture").string("general.architecture", "falcon9").u32("falcon9.block_count", 3);
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->gguf()->model_class, "falcon9");
  EXPECT_NE(checkpoint->find("blk.0.attn_q.weight"), nullptr);
  EXPECT_TRUE(checkpoint->vocabulary().has_value());
}

TEST_F(GgufTest, GivenAVocabularyAloneThenItIsRead) {
  GgufWriter writer = small_gguf();
  writer.without_tensors().remove("llama.block_count").remove("llama.embedding_length");
  writer.numbers<float>("tokenizer.ggml.scores", kFloat32, {0, -1, -2, -3});
  writer.u32("tokenizer.ggml.eot_token_id", 2).u32("tokenizer.ggml.padding_token_id", 0xffffffffu);
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_TRUE(checkpoint->tensors().empty());
  EXPECT_EQ(checkpoint->dtype_summary(), "");
  EXPECT_EQ(checkpoint->chat_template(), "{{ messages }}");
  EXPECT_EQ(checkpoint->generation_config(), boost::json::parse(R"({"eos_token_id": [1, 2]})").as_object());

  const std::optional<Vocabulary> vocabulary = checkpoint->vocabulary();
  ASSERT_TRUE(vocabulary.has_value());
  EXPECT_EQ(vocabulary->model, "gpt2");
  EXPECT_EQ(vocabulary->pre, "smollm");
  EXPECT_THAT(vocabulary->tokens, ElementsAre("<s>", "</s>", "a", "b"));
  EXPECT_THAT(vocabulary->token_types, ElementsAre(VocabularyTokenType::kControl, VocabularyTokenType::kControl,
                                                   VocabularyTokenType::kNormal, VocabularyTokenType::kNormal));
  EXPECT_THAT(vocabulary->scores, ElementsAre(0.0f, -1.0f, -2.0f, -3.0f));
  EXPECT_THAT(vocabulary->merges, ElementsAre("a b"));
  EXPECT_EQ(vocabulary->bos_id, 0);
  EXPECT_EQ(vocabulary->eos_id, 1);
  EXPECT_EQ(vocabulary->eot_id, 2);
  EXPECT_EQ(vocabulary->pad_id, std::nullopt) << "-1 means none";
  EXPECT_EQ(vocabulary->unk_id, std::nullopt);
  EXPECT_TRUE(vocabulary->add_bos);
  EXPECT_FALSE(vocabulary->add_space_prefix);
}

TEST_F(GgufTest, GivenNoFlagsThenTheTokenizersOwnHabitsHold) {
  GgufWriter sentencepiece = small_gguf();
  sentencepiece.remove("tokenizer.ggml.model").string("tokenizer.ggml.model", "llama");
  sentencepiece.remove("tokenizer.ggml.add_bos_token");
  GgufWriter bytes = small_gguf();
  bytes.remove("tokenizer.ggml.add_bos_token");
  const auto first = open(sentencepiece);
  ASSERT_NE(first, nullptr);
  EXPECT_TRUE(first->vocabulary()->add_bos);
  EXPECT_TRUE(first->vocabulary()->add_space_prefix);
  const auto second = open(bytes);
  ASSERT_NE(second, nullptr);
  EXPECT_FALSE(second->vocabulary()->add_bos);
  EXPECT_FALSE(second->vocabulary()->add_space_prefix);
}

TEST_F(GgufTest, GivenNoTokenizerThenThereIsNoVocabulary) {
  GgufWriter writer = small_gguf();
  writer.remove("tokenizer.ggml.model").string("tokenizer.ggml.model", "none");
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_FALSE(checkpoint->vocabulary().has_value());
}

TEST_F(GgufTest, GivenMostMatricesOfOneTypeThenTheSummaryNamesIt) {
  GgufWriter writer = small_gguf();
  writer.tensor("blk.0.attn_k.weight", {32, 2}, 2, std::string(2 * 18, 'x'));
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->dtype_summary(), "Q4_0");
}

}  // namespace
}  // namespace quire::checkpoint
