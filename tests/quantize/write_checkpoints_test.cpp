// Checkpoints are written and loaded again.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>
#include <stdexcept>

#include "checkpoint/gguf_description.h"
#include "quantize/write_compressed.h"
#include "quantize/write_gguf.h"
#include "tests/checkpoint/file_writers.h"
#include "tests/runner/tiny_model.h"

namespace quire::quantize {
namespace {

using checkpoint::TemporaryDirectory;
using runner::TinyModel;

void nobody(const std::string& /*line*/) {}

std::shared_ptr<const checkpoint::Checkpoint> open(const std::string& path) {
  auto opened = checkpoint::Checkpoint::open(path);
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  return opened.ok() ? *opened : nullptr;
}

std::unique_ptr<ops::Backend> exact_backend() {
  auto backend = ops::make_cpu_backend({.threads = 2, .activation_dtype = ActivationDType::kFloat32});
  EXPECT_TRUE(backend.ok());
  return std::move(*backend);
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::vector<TokenId>> random_windows(uint32_t seed, size_t count, size_t length) {
  std::mt19937 random(seed);
  std::vector<std::vector<TokenId>> windows(count);
  for (auto& window : windows) {
    for (size_t i = 0; i < length; ++i) window.push_back(static_cast<TokenId>(random() % 500));
  }
  return windows;
}

// The golden cases' logits, row by row.
std::vector<std::vector<float>> logits_of(const std::string& path, const std::string& golden) {
  const auto backend = exact_backend();
  TinyModel model(path, *backend, "float32");
  std::vector<std::vector<float>> rows;
  for (const auto& one : runner::read_golden(golden)) {
    for (auto& row : model.logits(one.prompt, 64)) rows.push_back(std::move(row));
  }
  return rows;
}

double mean_difference(const std::vector<std::vector<float>>& one, const std::vector<std::vector<float>>& other) {
  double sum = 0;
  size_t count = 0;
  EXPECT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    for (size_t k = 0; k < one[i].size(); ++k, ++count)
      sum += std::abs(static_cast<double>(one[i][k]) - static_cast<double>(other[i][k]));
  }
  return sum / static_cast<double>(count);
}

Result<WrittenFile> write(const std::string& from, const std::filesystem::path& out, const std::string& type,
                          const Progress& progress = nobody, const ImportanceMatrix& importance = {},
                          bool requantize = false) {
  const auto checkpoint = open(from);
  QUIRE_ASSIGN_OR_RETURN(GgufSource source, describe_source(*checkpoint, {}));
  ThreadPool threads({.num_threads = 2, .pin = false});
  return write_gguf(std::move(source), importance,
                    {.mix = find_gguf_mix(type).value(),
                     .out = out,
                     .source_hash = hash_checkpoint(*checkpoint),
                     .allow_requantize = requantize},
                    threads, progress);
}

TEST(WriteGguf, AConvertedCheckpointGivesTheSameLogits) {
  // Rows of q and k turned, biases, norms of heads, divisors of the rotary frequencies, linear and yarn scaling,
  // experts that become stacks.
  for (const char* name :
       {"llama", "qwen2", "qwen3", "llama3_rope", "llama_linear", "llama_yarn", "mixtral", "qwen2_moe", "qwen3_moe"}) {
    SCOPED_TRACE(name);
    const TemporaryDirectory folder;
    const auto path = folder.path() / "out.gguf";
    const auto written = write(runner::tiny_path(name), path, "f32");
    ASSERT_TRUE(written.ok()) << written.status().message();
    EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(path)), written->bytes);
    EXPECT_LT(mean_difference(logits_of(path.string(), name), logits_of(runner::tiny_path(name), name)), 2e-5);
  }
}

// Readers of GGUF know one activation for each architecture.
TEST(WriteGguf, AnotherActivationHasNoPlace) {
  const TemporaryDirectory folder;
  const auto model = folder.path() / "model";
  std::filesystem::copy(runner::tiny_path("llama"), model);
  std::string config = content_of(model / "config.json");
  const size_t at = config.find("\"silu\"");
  ASSERT_NE(at, std::string::npos);
  config.replace(at, 6, "\"relu\"");
  std::filesystem::remove(model / "config.json");
  std::ofstream(model / "config.json") << config;
  const auto written = write(model.string(), folder.path() / "out.gguf", "f32");
  ASSERT_FALSE(written.ok());
  EXPECT_NE(written.status().message().find("activation"), std::string::npos) << written.status().message();
}

TEST(WriteGguf, FewerBitsAreFurtherOff) {
  const TemporaryDirectory folder;
  const auto exact = logits_of(runner::tiny_path("qwen2"), "qwen2");
  std::map<std::string, double> off;
  for (const char* type : {"q8_0", "q5_1", "q4_1", "q4_0", "q4_k_m"}) {
    const auto path = folder.path() / type;
    ASSERT_TRUE(write(runner::tiny_path("qwen2"), path.string() + ".gguf", type).ok()) << type;
    off[type] = mean_difference(logits_of(path.string() + ".gguf", "qwen2"), exact);
  }
  EXPECT_LT(off["q8_0"], off["q5_1"] / 3);
  EXPECT_LT(off["q5_1"], off["q4_1"]);
  EXPECT_LT(off["q4_1"], off["q4_0"]);
  // Rows of 64 and 128 values take Q5_0 in the place of Q4_K, the down projection of some layers Q8_0.
  EXPECT_LT(off["q4_k_m"], off["q4_0"]);
}

TEST(WriteGguf, OfAGgufFileAllMetadataStays) {
  const TemporaryDirectory folder;
  const auto first = folder.path() / "first.gguf";
  const auto second = folder.path() / "second.gguf";
  ASSERT_TRUE(write(runner::tiny_path("llama"), first, "f16").ok());
  ASSERT_TRUE(write(first.string(), second, "q8_0").ok());
  const auto from = open(first.string());
  const auto to = open(second.string());
  for (const auto& [key, value] : from->gguf()->metadata.values()) {
    if (key == "general.file_type") continue;
    const auto& values = to->gguf()->metadata.values();
    ASSERT_TRUE(values.contains(key)) << key;
    EXPECT_TRUE(std::ranges::equal(values.at(key).data, value.data)) << key;
  }
  EXPECT_EQ(to->gguf()->metadata.integer("general.file_type").value(), 7);
  EXPECT_EQ(to->find("model.layers.0.mlp.up_proj.weight")->view.dtype, DType::kQ8_0);
  EXPECT_EQ(to->find("model.norm.weight")->view.dtype, DType::kF32);

  const auto twice = write(second.string(), folder.path() / "third.gguf", "q4_0");
  ASSERT_FALSE(twice.ok());
  EXPECT_NE(twice.status().message().find("--allow-requantize"), std::string::npos) << twice.status().message();
  EXPECT_TRUE(write(second.string(), folder.path() / "third.gguf", "q4_0", nobody, {}, true).ok());
}

TEST(WriteGguf, WhatWasCutIsGoneOnWith) {
  const TemporaryDirectory folder;
  const auto whole = folder.path() / "whole.gguf";
  const auto cut = folder.path() / "cut.gguf";
  ASSERT_TRUE(write(runner::tiny_path("llama"), whole, "q4_1").ok());
  int lines = 0;
  const auto stop = [&](const std::string&) {
    if (++lines == 8) throw std::runtime_error("the power is gone");
  };
  EXPECT_THROW(std::ignore = write(runner::tiny_path("llama"), cut, "q4_1", stop), std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(cut));
  const auto rest = write(runner::tiny_path("llama"), cut, "q4_1");
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(rest->tensors_found_done, 7);
  EXPECT_EQ(content_of(cut), content_of(whole));
}

TEST(WriteGguf, WhatItCannotSayIsRefusedByName) {
  const TemporaryDirectory folder;
  for (const auto& [name, found] : {std::pair<const char*, const char*>{"gemma2", "Gemma2ForCausalLM"},
                                    {"qwen2_moe_windows", "sliding windows"},
                                    {"mistral_swa", "sliding windows"}}) {
    const auto written = write(runner::tiny_path(name), folder.path() / "out.gguf", "f16");
    ASSERT_FALSE(written.ok()) << name;
    EXPECT_NE(written.status().message().find(found), std::string::npos) << written.status().message();
  }
}

TEST(Importance, IsTheMeanSquareOfEachInput) {
  const auto backend = exact_backend();
  auto walk = LayerWalk::create(open(runner::tiny_path("llama")), *backend, random_windows(3, 4, 40));
  ASSERT_TRUE(walk.ok()) << walk.status().message();
  EXPECT_EQ((*walk)->num_tokens(), 160);
  const auto matrix = collect_importance(**walk, nobody);
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  const auto q = matrix->of("model.layers.0.self_attn.q_proj");
  EXPECT_EQ(q.size(), 64u);
  EXPECT_EQ(q, matrix->of("model.layers.0.self_attn.v_proj")) << "they share their inputs";
  EXPECT_NE(q, matrix->of("model.layers.1.self_attn.q_proj"));
  EXPECT_EQ(matrix->of("model.layers.1.mlp.down_proj").size(), 128u);
  EXPECT_EQ(matrix->of("lm_head").size(), 64u);
  EXPECT_TRUE(matrix->of("model.layers.9.mlp.down_proj").empty());
  // The inputs of q are normalised rows, scaled by the norm's weights: their mean square is about that of those.
  const auto checkpoint = open(runner::tiny_path("llama"));
  const auto* norm = static_cast<const float*>(checkpoint->find("model.layers.0.input_layernorm.weight")->view.data);
  double wanted = 0;
  double found = 0;
  for (size_t k = 0; k < 64; ++k) {
    wanted += static_cast<double>(norm[k]) * static_cast<double>(norm[k]);
    found += static_cast<double>(q[k]);
  }
  EXPECT_NEAR(found / wanted, 1.0, 0.2);

  const TemporaryDirectory folder;
  ASSERT_TRUE(write(runner::tiny_path("llama"), folder.path() / "with.gguf", "q4_0", nobody, *matrix).ok());
  ASSERT_TRUE(write(runner::tiny_path("llama"), folder.path() / "without.gguf", "q4_0").ok());
  EXPECT_NE(content_of(folder.path() / "with.gguf"), content_of(folder.path() / "without.gguf"));
}

TEST(Importance, KnowsExpertsByThemselves) {
  const auto backend = exact_backend();
  auto walk = LayerWalk::create(open(runner::tiny_path("qwen3_moe")), *backend, random_windows(5, 2, 64));
  ASSERT_TRUE(walk.ok()) << walk.status().message();
  const auto matrix = collect_importance(**walk, nobody);
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  const auto one = matrix->of("model.layers.0.mlp.experts.0.up_proj");
  EXPECT_FALSE(one.empty());
  EXPECT_NE(one, matrix->of("model.layers.0.mlp.experts.1.up_proj"));
  const TemporaryDirectory folder;
  ASSERT_TRUE(write(runner::tiny_path("qwen3_moe"), folder.path() / "with.gguf", "q4_0", nobody, *matrix).ok());
  ASSERT_TRUE(write(runner::tiny_path("qwen3_moe"), folder.path() / "without.gguf", "q4_0").ok());
  const auto stack_of = [&](const char* file) {
    const auto opened = open((folder.path() / file).string());
    const TensorView& view = opened->find("model.layers.0.mlp.experts.up_proj.weight")->view;
    return std::string(static_cast<const char*>(view.data), static_cast<size_t>(view.bytes()));
  };
  EXPECT_NE(stack_of("with.gguf"), stack_of("without.gguf"));
}

Result<WrittenFile> compress(const std::string& name, const std::filesystem::path& out, bool calibrated,
                             const Progress& progress = nobody, int64_t group_size = 0) {
  const auto backend = exact_backend();
  const auto checkpoint = open(runner::tiny_path(name));
  std::unique_ptr<LayerWalk> walk;
  if (calibrated) {
    QUIRE_ASSIGN_OR_RETURN(walk, LayerWalk::create(checkpoint, *backend, random_windows(3, 24, 64)));
  }
  return write_compressed(checkpoint, walk.get(), *backend,
                          {.source = runner::tiny_path(name),
                           .out = out,
                           .source_hash = hash_checkpoint(*checkpoint),
                           .group_size = group_size},
                          progress);
}

TEST(WriteCompressed, CalibrationLeavesTheLogitsNearer) {
  // How far off logits may be of what rounding each weight by itself gives; of random weights errors soon are as large
  // as the logits.
  for (const auto& [name, most] : {std::pair<const char*, double>{"llama", 0.95}, {"qwen2", 1.1}}) {
    SCOPED_TRACE(name);
    const TemporaryDirectory folder;
    const auto calibrated = compress(name, folder.path() / "calibrated", true);
    ASSERT_TRUE(calibrated.ok()) << calibrated.status().message();
    ASSERT_TRUE(compress(name, folder.path() / "rounded", false).ok());
    const auto exact = logits_of(runner::tiny_path(name), name);
    const double off = mean_difference(logits_of((folder.path() / "calibrated").string(), name), exact);
    const double rounded = mean_difference(logits_of((folder.path() / "rounded").string(), name), exact);
    EXPECT_LT(off, most * rounded);
    const auto written = open((folder.path() / "calibrated").string());
    const auto* scales = written->find("model.layers.0.mlp.down_proj.weight_scale");
    ASSERT_NE(scales, nullptr);
    EXPECT_EQ(scales->view.shape, (Shape{64, 2})) << "groups of 64: the widest that rows of 64 allow";
  }
}

TEST(WriteCompressed, ExpertsAreCalibratedByThemselvesAndRoutersStay) {
  const TemporaryDirectory folder;
  const auto written = compress("qwen2_moe", folder.path() / "out", true, nobody, 16);  // rows of 64 and 48
  ASSERT_TRUE(written.ok()) << written.status().message();
  const auto checkpoint = open((folder.path() / "out").string());
  EXPECT_NE(checkpoint->find("model.layers.0.mlp.experts.1.up_proj.weight_packed"), nullptr);
  EXPECT_NE(checkpoint->find("model.layers.0.mlp.shared_expert.down_proj.weight_packed"), nullptr);
  EXPECT_NE(checkpoint->find("model.layers.0.mlp.gate.weight"), nullptr);
  EXPECT_NE(checkpoint->find("model.layers.0.mlp.shared_expert_gate.weight"), nullptr);
  ASSERT_TRUE(compress("qwen2_moe", folder.path() / "rounded", false, nobody, 16).ok());
  const auto exact = logits_of(runner::tiny_path("qwen2_moe"), "qwen2_moe");
  const auto off = [&](const char* name) {
    return mean_difference(logits_of((folder.path() / name).string(), "qwen2_moe"), exact);
  };
  EXPECT_LT(off("out"), 1.1 * off("rounded"));
}

TEST(WriteCompressed, WhatWasCutIsGoneOnWithAtTheNextLayer) {
  const TemporaryDirectory folder;
  ASSERT_TRUE(compress("llama", folder.path() / "whole", true).ok());
  int lines = 0;
  const auto stop = [&](const std::string&) {
    if (++lines == 2) throw std::runtime_error("the power is gone");
  };
  EXPECT_THROW(std::ignore = compress("llama", folder.path() / "cut", true, stop), std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "cut"));
  const auto rest = compress("llama", folder.path() / "cut", true);
  ASSERT_TRUE(rest.ok()) << rest.status().message();
  EXPECT_EQ(rest->tensors_found_done, 7);
  for (const char* file : {"model.safetensors", "config.json", "generation_config.json"})
    EXPECT_EQ(content_of(folder.path() / "cut" / file), content_of(folder.path() / "whole" / file)) << file;
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "cut.partial"));
}

TEST(WriteCompressed, WhatItCannotDoIsRefusedByName) {
  const TemporaryDirectory folder;
  const auto refused = [&](const char* name, const char* found, int64_t group_size = 0) {
    const auto written = compress(name, folder.path() / "out", false, nobody, group_size);
    ASSERT_FALSE(written.ok()) << name;
    EXPECT_NE(written.status().message().find(found), std::string::npos) << written.status().message();
  };
  refused("gpt_oss", "stack of experts");
  refused("gpt2", "transposed");
  refused("llama", "--group-size 48", 48);
  refused("llama_fp8_rows", "quantised already");
}

}  // namespace
}  // namespace quire::quantize
