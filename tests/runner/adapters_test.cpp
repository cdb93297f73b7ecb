// Low-rank adapters of the tiny checkpoints against the answers of Hugging Face's PEFT in float32, and what is said of
// those that do not fit.
#include "runner/adapter.h"

#include <filesystem>
#include <tuple>

#include "checkpoint/adapter_file.h"
#include "tests/checkpoint/file_writers.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

std::string adapter_path(const std::string& name) {
  return std::string(QUIRE_TEST_DATA) + "/e2e/lora/" + name;
}

Result<std::shared_ptr<const Adapter>> load_adapter(const std::string& path, const AdapterHost& host,
                                                    ops::Backend& backend) {
  QUIRE_ASSIGN_OR_RETURN(const auto file, checkpoint::AdapterFile::open(path));
  return Adapter::make(*file, host, backend);
}

class PeftAdapters : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    const std::string& adapter = std::get<0>(GetParam());
    family_ = adapter.substr(0, adapter.find('/'));
    begin(make_test_backend(std::get<1>(GetParam())));
  }
  void begin(std::unique_ptr<ops::Backend> backend) {
    const std::string& adapter = std::get<0>(GetParam());
    adapter_.reset();
    model_.reset();
    backend_ = std::move(backend);
    if (backend_ == nullptr) GTEST_SKIP() << "this machine has no " << std::get<1>(GetParam());
    model_ = std::make_unique<TinyModel>(family_, *backend_, "float32");
    auto loaded = load_adapter(adapter_path(adapter), model_->adapter_host(), *backend_);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    adapter_ = std::move(*loaded);
    cases_ = read_golden(adapter_path(adapter));
    ASSERT_FALSE(cases_.empty());
  }
  std::string family_;
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<TinyModel> model_;
  std::shared_ptr<const Adapter> adapter_;
  std::vector<GoldenCase> cases_;
};

TEST_P(PeftAdapters, LogprobsAgreeWithTheReferenceAndTheBasesAreAnother) {
  // The record's own sums are of floats, those of the reference of doubles.
  const double kTolerance = std::get<1>(GetParam()) == "reference" ? 2e-4 : 1e-4;
  double of_base = 0;
  for (const GoldenCase& one : cases_) {
    model_->use_adapter(nullptr);
    const auto base = model_->logits(one.prompt, 2048);
    model_->use_adapter(adapter_);
    const auto rows = model_->logits(one.prompt, 2048);
    for (size_t i = 0; i < one.prompt_logprobs.size(); ++i) {
      ASSERT_NEAR(log_softmax(rows[i], one.prompt[i + 1]), one.prompt_logprobs[i], kTolerance) << "position " << i + 1;
      of_base = std::max(of_base, std::abs(log_softmax(base[i], one.prompt[i + 1]) - one.prompt_logprobs[i]));
    }
    for (size_t i = 0; i < one.last_logits.size(); ++i) ASSERT_NEAR(rows.back()[i], one.last_logits[i], 1e-3);
  }
  EXPECT_GT(of_base, 10 * kTolerance) << "the adapter changes nothing, so that nothing was seen";
}

TEST_P(PeftAdapters, GreedyTokensAreTheReferences) {
  // The reference is written to be read, and a card may be emulated: some steps of the short prompts are as many as it
  // should be asked for.
  const bool is_card = cards::is_card(std::get<1>(GetParam()));
  const bool is_slow = is_card || std::get<1>(GetParam()) == "reference";
  model_->use_adapter(adapter_);
  for (const GoldenCase& one : cases_) {
    if (is_slow && one.prompt.size() > 32) continue;
    std::vector<TokenId> tokens = one.prompt;
    const size_t steps = is_slow ? std::min<size_t>(one.greedy.size(), is_card ? 3 : 8) : one.greedy.size();
    for (size_t i = 0; i < steps && one.greedy_margin[i] > 1e-3; ++i) {
      const std::vector<float> logits = model_->logits(tokens, 2048).back();
      const auto next = static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
      ASSERT_EQ(next, one.greedy[i]) << "step " << i;
      tokens.push_back(next);
    }
  }
}

TEST_P(PeftAdapters, LogitsAreTheSameBitsHoweverThePromptIsCut) {
  if (std::get<1>(GetParam()) == "reference") GTEST_SKIP() << "where it matters is elsewhere";
  if (cards::is_card(std::get<1>(GetParam()))) begin(cards::make_card(2, {.checked = true, .batch_invariant = true}));
  model_->use_adapter(adapter_);
  const GoldenCase& one = cases_.back();
  const auto whole = model_->logits(one.prompt, 2048);
  for (const int32_t chunk : {1, 3, 17}) EXPECT_EQ(model_->logits(one.prompt, chunk), whole) << "chunks of " << chunk;
}

INSTANTIATE_TEST_SUITE_P(
    AllBackends, PeftAdapters,
    testing::Combine(testing::Values("llama/qv", "llama/all_linear", "llama/rslora", "llama/some_layers",
                                     "llama/patterns", "llama/embed_head", "llama/dora", "qwen2/dora", "gpt2/dora",
                                     "opt/dora", "llama/dora_embed", "qwen2/all_linear", "qwen2/embed_head", "gpt2/qv",
                                     "gpt2/all_linear", "opt/all_linear", "gemma2/all_linear", "mistral_swa/rslora",
                                     "mixtral/all_linear", "deepseek_v2/kv_b", "deepseek_v2/latent",
                                     "deepseek_v3/latent", "mixtral/stacks", "mixtral/old_stacks", "qwen3_moe/stacks",
                                     "deepseek_v3/stacks", "gpt_oss/stacks", "llama/tokens", "qwen2/tokens",
                                     "gemma3/tokens", "qwen2_moe/shared"),
                     testing::Values("reference", "portable", "avx2", "avx512", "cuda")),
    [](const auto& test) {
      std::string name = std::get<0>(test.param) + "_" + std::get<1>(test.param);
      std::ranges::replace(name, '/', '_');
      return name;
    });

// The adapter of the tiny Mixtral's attention as llama.cpp's converter writes it: rows of q and k that rotate together
// stand beside each other.
std::string as_gguf(const checkpoint::AdapterFile& peft, const ModelConfig& config) {
  checkpoint::GgufWriter writer;
  writer.string("general.type", "adapter").string("general.architecture", "llama").string("adapter.type", "lora");
  writer.f32("adapter.lora.alpha", static_cast<float>(peft.peft->alpha));
  const auto head = static_cast<size_t>(config.head_dim);
  for (const checkpoint::AdapterFile::LowRank& pair : peft.low_rank) {
    std::string name = pair.module.substr(std::string("model.layers.").size());
    const size_t dot = name.find('.');
    const std::string layer = name.substr(0, dot);
    const std::string what = name.substr(name.rfind('.') + 1);
    name = "blk." + layer + (what == "o_proj" ? ".attn_output" : ".attn_" + what.substr(0, 1)) + ".weight.lora_";
    const auto add = [&](const std::string& ending, const TensorView& view, bool turned) {
      const auto rows = static_cast<size_t>(view.shape[0]);
      const size_t bytes = static_cast<size_t>(view.shape[1]) * sizeof(float);
      std::string data;
      for (size_t n = 0; n < rows; ++n) {
        const size_t from = turned ? n / head * head + n % 2 * (head / 2) + n % head / 2 : n;
        data.append(static_cast<const char*>(view.data) + from * bytes, bytes);
      }
      writer.tensor(name + ending, {static_cast<uint64_t>(view.shape[1]), rows}, 0, data);
    };
    add("a", pair.down, false);
    add("b", pair.up, what == "q_proj" || what == "k_proj");
  }
  return writer.build();
}

// Either form of an adapter on either form of its base: four ways to the same answers.
TEST(GgufAdapters, EitherFormFitsEitherFormOfTheBase) {
  const auto backend = make_test_backend("portable");
  const std::string folder = adapter_path("mixtral/all_linear");
  const auto peft = checkpoint::AdapterFile::open(folder);
  ASSERT_TRUE(peft.ok()) << peft.status().message();
  const checkpoint::TemporaryDirectory directory;
  for (const std::string base : {"mixtral", "../tiny_gguf/mixtral.gguf"}) {
    TinyModel model(base, *backend, "float32");
    const std::string file = checkpoint::write_file(directory.path() / "adapter.gguf", as_gguf(**peft, model.config()));
    for (const std::string& path : {folder, file}) {
      SCOPED_TRACE(base + " with " + path);
      auto adapter = load_adapter(path, model.adapter_host(), *backend);
      ASSERT_TRUE(adapter.ok()) << adapter.status().message();
      model.use_adapter(*adapter);
      for (const GoldenCase& one : read_golden(folder)) {
        const auto rows = model.logits(one.prompt, 2048);
        for (size_t i = 0; i < one.prompt_logprobs.size(); ++i)
          ASSERT_NEAR(log_softmax(rows[i], one.prompt[i + 1]), one.prompt_logprobs[i], 1e-4);
      }
    }
  }
}

// There experts are stacks of gate and of up apart, and latent attention's projection is in two.
TEST(GgufAdapters, ThoseOfStacksAndOfLatentAttentionFitABaseOfGguf) {
  const auto backend = make_test_backend("portable");
  for (const std::string name : {"mixtral/stacks", "mixtral/old_stacks", "deepseek_v2/kv_b", "deepseek_v3/stacks"}) {
    SCOPED_TRACE(name);
    TinyModel model("../tiny_gguf/" + name.substr(0, name.find('/')) + ".gguf", *backend, "float32");
    auto adapter = load_adapter(adapter_path(name), model.adapter_host(), *backend);
    ASSERT_TRUE(adapter.ok()) << adapter.status().message();
    model.use_adapter(*adapter);
    for (const GoldenCase& one : read_golden(adapter_path(name))) {
      const auto rows = model.logits(one.prompt, 2048);
      for (size_t i = 0; i < one.prompt_logprobs.size(); ++i)
        ASSERT_NEAR(log_softmax(rows[i], one.prompt[i + 1]), one.prompt_logprobs[i], 1e-4);
    }
  }
}

TEST(GgufAdapters, WhatIsNoAdapterOrNotBuiltIsTold) {
  const checkpoint::TemporaryDirectory directory;
  const auto message = [&](const std::function<void(checkpoint::GgufWriter&)>& change) {
    checkpoint::GgufWriter writer;
    writer.string("general.type", "adapter").string("general.architecture", "llama").string("adapter.type", "lora");
    writer.f32("adapter.lora.alpha", 4);
    const std::string data(8 * sizeof(float), '\0');
    writer.tensor("blk.0.attn_q.weight.lora_a", {4, 2}, 0, data).tensor("blk.0.attn_q.weight.lora_b", {2, 4}, 0, data);
    change(writer);
    return checkpoint::AdapterFile::open(checkpoint::write_file(directory.path() / "a.gguf", writer.build()))
        .status()
        .message();
  };
  const auto expect = [&](std::string_view part, const std::function<void(checkpoint::GgufWriter&)>& change) {
    const std::string text = message(change);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  EXPECT_EQ(message([](auto&) {}), "");
  expect("general.type", [](auto& w) { w.remove("general.type").string("general.type", "model"); });
  expect("adapter.type", [](auto& w) { w.remove("adapter.type").string("adapter.type", "control_vector"); });
  expect("adapter.lora.alpha", [](auto& w) { w.remove("adapter.lora.alpha"); });
  expect("none that is known",
         [](auto& w) { w.remove("general.architecture").string("general.architecture", "nobody"); });
  expect("activated LoRA", [](auto& w) { w.u32("adapter.alora.invocation_tokens", 1); });
  const std::string data(8 * sizeof(float), '\0');
  expect("is no factor", [&](auto& w) { w.tensor("blk.0.attn_q.weight", {4, 2}, 0, data); });
  expect("alone", [&](auto& w) { w.tensor("blk.1.attn_q.weight.lora_a", {4, 2}, 0, data); });
  expect("no weight", [&](auto& w) { w.tensor("blk.0.nobody.weight.lora_a", {4, 2}, 0, data); });
}

// What is said of adapters that do not fit, by what was changed of one that does.
class UnfitAdapters : public testing::Test {
 protected:
  UnfitAdapters() : backend_(ops::make_reference_backend()), model_("llama", *backend_) {
    folder_ = std::filesystem::path(testing::TempDir()) / "unfit_adapters";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~UnfitAdapters() override { std::filesystem::remove_all(folder_); }

  static std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  static void replace(std::string& text, std::string_view from, std::string_view to) {
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  }
  // The message; empty: it fits.
  std::string message(const std::string& adapter,
                      const std::function<void(std::string& config, std::string& weights)>& change,
                      int32_t max_rank = 16) const {
    std::string config = read(adapter_path(adapter) + "/adapter_config.json");
    std::string weights = read(adapter_path(adapter) + "/adapter_model.safetensors");
    change(config, weights);
    write("adapter_config.json", config);
    write("adapter_model.safetensors", weights);
    AdapterHost host = model_.adapter_host();
    host.max_rank = max_rank;
    return load_adapter(folder_.string(), host, *backend_).status().message();
  }
  std::string message_of(const std::string& adapter, std::string_view from, std::string_view to) const {
    return message(adapter, [&](std::string& config, std::string&) { replace(config, from, to); });
  }

  std::unique_ptr<ops::Backend> backend_;
  TinyModel model_;
  std::filesystem::path folder_;
};

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(UnfitAdapters, AsItIsItFits) {
  EXPECT_EQ(message("llama/qv", [](std::string&, std::string&) {}), "");
}

TEST_F(UnfitAdapters, WhatIsNotBuiltIsRefusedByName) {
  EXPECT_SAYS(message_of("llama/qv", "\"use_qalora\": false", "\"use_qalora\": true"), "QALoRA");
  EXPECT_SAYS(message_of("llama/qv", "\"bias\": \"none\"", "\"bias\": \"all\""), "bias");
  EXPECT_SAYS(message_of("llama/qv", "\"LORA\"", "\"IA3\""), "IA3");
  EXPECT_SAYS(message_of("llama/qv", "\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\""), "pissa");
  EXPECT_SAYS(message_of("llama/qv", "\"target_parameters\": null", "\"target_parameters\": [\"x\"]"),
              "target_parameters");
  EXPECT_SAYS(message_of("llama/qv", "\"arrow_config\": null", "\"unheard_of\": 3"), "unheard_of");
}

TEST_F(UnfitAdapters, AConfigurationThatContradictsTheFileIsToldSo) {
  EXPECT_SAYS(message_of("llama/dora", "\"use_dora\": true", "\"use_dora\": false"), "a lora_magnitude_vector");
  EXPECT_SAYS(message_of("llama/qv", "\"use_dora\": false", "\"use_dora\": true"), "no lora_magnitude_vector");
  EXPECT_SAYS(message_of("llama/qv", "\"r\": 4", "\"r\": 8"), "expected rank 8");
  EXPECT_SAYS(message_of("llama/qv", "\"r\": 4", "\"r\": 0"), "r is 0");
  EXPECT_SAYS(message_of("llama/qv", "\"lora_alpha\": 8", "\"lora_alpha\": -1"), "lora_alpha");
  EXPECT_SAYS(message_of("llama/qv", "\"v_proj\"", "\"v_proj\", \"k_proj\""), "k_proj");
  EXPECT_SAYS(message_of("llama/some_layers", "  1\n", "  0, 1\n"), "model.layers.0.");
  // PEFT leaves such factors out without a word.
  EXPECT_SAYS(message_of("llama/qv", "\"v_proj\"", "\"q_proj\""), "neither target_modules nor target_parameters names");
  EXPECT_SAYS(message_of("llama/qv", "\"layers_to_transform\": null", "\"layers_to_transform\": [1]"),
              "\"model.layers.0.self_attn.");
  EXPECT_SAYS(message_of("llama/patterns", "\"q_proj\": 4", "\"q_proj\": 5"), "expected rank 5");
  EXPECT_SAYS(message_of("llama/patterns", "\"q_proj\": 4", "\"q_(pro\": 5"), "does not compile");
  EXPECT_SAYS(message_of("llama/qv", "{", "{,"), "adapter_config.json");
}

TEST_F(UnfitAdapters, WhatIsTrainedWholeIsTheEmbeddingOrTheHead) {
  const std::string name = "lm_head.token_adapter.trainable_tokens_delta\"";
  for (const std::string module : {"model.norm", "model.layers.0.input_layernorm"}) {
    const std::string told = message("llama/tokens", [&](std::string& config, std::string& weights) {
      replace(config, "\"modules_to_save\": null", "\"modules_to_save\": [\"norm\"]");
      std::string renamed = module + ".weight\"";
      renamed.resize(name.size(), ' ');
      replace(weights, name, renamed);
    });
    EXPECT_SAYS(told, "module \"" + module + "\" is trained whole (modules_to_save)");
  }
}

// Of a stack of another model, of which a base has as many modules.
TEST_F(UnfitAdapters, TrainedRowsOfTokensThatTheModelOrTheFileHasNotAreTold) {
  EXPECT_EQ(message("llama/tokens", [](std::string&, std::string&) {}), "");
  EXPECT_SAYS(message_of("llama/tokens", "      401,", "      99999,"), "99999");
  EXPECT_SAYS(message_of("llama/tokens", "      401,", "      12,"), "12 twice");
  EXPECT_SAYS(message_of("llama/tokens", "      401,", "      -1,"), "trainable_token_indices");
  EXPECT_SAYS(message_of("llama/tokens", "      401,", ""), "expected 2 rows");
  EXPECT_SAYS(message_of("llama/tokens", "\"lm_head\": [", "\"gate_proj\": ["), "lm_head");
  EXPECT_SAYS(message_of("llama/qv", "\"trainable_token_indices\": null", "\"trainable_token_indices\": [3]"),
              "no trainable_tokens_delta");
  EXPECT_SAYS(message("llama/tokens",
                      [](std::string&, std::string& weights) {
                        for (size_t at = 0; (at = weights.find("lm_head.token_adapter", at)) != std::string::npos; ++at)
                          weights.replace(at, 7, "lm_tail");
                      }),
              "lm_tail");
}

TEST(UnfitStacks, AreToldWhatDoesNotFit) {
  const auto backend = ops::make_reference_backend();
  const TinyModel model("mixtral", *backend);
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "unfit_stacks";
  const auto message = [&](std::string_view from, std::string_view to,
                           const std::string& file = "adapter_config.json") {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
      std::ifstream in(adapter_path("mixtral/stacks") + "/" + name, std::ios::binary);
      std::ostringstream text;
      text << in.rdbuf();
      std::string changed = text.str();
      for (size_t at = 0; !from.empty() && name == file && (at = changed.find(from, at)) != std::string::npos;
           at += to.size())
        changed.replace(at, from.size(), to);
      std::ofstream(folder / name, std::ios::binary) << changed;
    }
    return load_adapter(folder.string(), model.adapter_host(), *backend).status().message();
  };
  EXPECT_EQ(message("", ""), "");
  EXPECT_SAYS(message("\"r\": 4", "\"r\": 8"), "expected rank 8");
  // Patterns are of the parameter's name, not the module's.
  EXPECT_EQ(message("\"rank_pattern\": {}", "\"rank_pattern\": {\"mlp.gate\": 2}"), "");
  EXPECT_SAYS(message("\"rank_pattern\": {}", "\"rank_pattern\": {\"mlp.gate.weight\": 2}"), "expected rank 2");
  EXPECT_SAYS(message("mlp.experts.down_proj", "mlp.experts.down_proj_bias"), "down_proj_bias");
  // A module that is wrapped more often than parameters are named.
  EXPECT_SAYS(message("mlp.experts.down_proj", "mlp.others.down_proj"), "experts.base_layer");
  EXPECT_SAYS(message(".mlp.experts.lora_", ".mlp.persons.lora_", "adapter_model.safetensors"), "persons");
  EXPECT_SAYS(message("layers.1.mlp.experts.lora_", "layers.1.mlp.experts.0000_", "adapter_model.safetensors"),
              "neither a factor");
  std::filesystem::remove_all(folder);
}

TEST_F(UnfitAdapters, ARankOverTheLimitSaysHowToRaiseIt) {
  EXPECT_SAYS(message(
                  "llama/rslora", [](std::string&, std::string&) {}, 8),
              "--max-lora-rank 16");
}

TEST_F(UnfitAdapters, SoftPromptsThatAreTooLongOrOfAnotherModelAreTold) {
  const auto as_it_is = [](std::string&, std::string&) {};
  EXPECT_EQ(message("llama/prompt_tuning", as_it_is), "");
  EXPECT_SAYS(message("llama/prompt_tuning_20", as_it_is), "--max-prompt-adapter-token 20");
  EXPECT_EQ(message("llama/prefix_tuning", as_it_is), "");
  EXPECT_SAYS(message_of("llama/prefix_tuning", "\"prefix_projection\": false", "\"prefix_projection\": true"),
              "projection");
  EXPECT_SAYS(message_of("llama/prompt_tuning", "\"num_virtual_tokens\": 5", "\"num_virtual_tokens\": 6"),
              "expected 6 rows");
  EXPECT_SAYS(
      message("llama/prompt_tuning", [](std::string&, std::string& weights) { replace(weights, "[5,64]", "[64,5]"); }),
      "expected 5 rows");
}

TEST_F(UnfitAdapters, TargetsMayBeARegularExpression) {
  const auto with_targets = [&](std::string_view targets) {
    return message("llama/qv", [&](std::string& config, std::string&) {
      const size_t begin = config.find("\"target_modules\": [");
      config.replace(begin, config.find(']', begin) + 1 - begin, "\"target_modules\": " + std::string(targets));
    });
  };
  EXPECT_EQ(with_targets("\".*self_attn\\\\.(q|v)_proj\""), "");
  EXPECT_SAYS(with_targets("\".*self_attn\\\\.(q|v|o)_proj\""), "o_proj");
  EXPECT_SAYS(with_targets("\"all-linear\""), "gate_proj");
}

TEST_F(UnfitAdapters, TensorsOfAnotherBaseAreTold) {
  const auto renamed = [&](std::string_view from, std::string_view to) {
    return message("llama/qv", [&](std::string&, std::string& weights) { replace(weights, from, to); });
  };
  EXPECT_SAYS(renamed("layers.0.self_attn.q_proj.lora_A", "layers.7.self_attn.q_proj.lora_A"), "layers.");
  EXPECT_SAYS(renamed("base_model.model", "some_model.model"), "base_model");
  EXPECT_SAYS(message("gpt2/qv", [](std::string&, std::string&) {}), "another model");
  EXPECT_SAYS(message("opt/all_linear", [](std::string&, std::string&) {}), "another model");
}

TEST_F(UnfitAdapters, ValuesThatAreNanAreRefused) {
  EXPECT_SAYS(message("llama/qv",
                      [](std::string&, std::string& weights) {
                        const float nothing = NAN;
                        std::memcpy(weights.data() + weights.size() - 64, &nothing, 4);
                      }),
              "no finite numbers");
}

TEST_F(UnfitAdapters, CutShortAndPicklesAreRefused) {
  EXPECT_SAYS(message("llama/qv", [](std::string&, std::string& weights) { weights.resize(weights.size() / 2); }),
              "adapter_model.safetensors");
  std::filesystem::remove(folder_ / "adapter_model.safetensors");
  write("adapter_model.bin", "PK");
  EXPECT_SAYS(load_adapter(folder_.string(), model_.adapter_host(), *backend_).status().message(), "pickle");
  std::filesystem::remove(folder_ / "adapter_model.bin");
  EXPECT_SAYS(load_adapter(folder_.string(), model_.adapter_host(), *backend_).status().message(),
              "adapter_model.safetensors");
  EXPECT_SAYS(load_adapter((folder_ / "nowhere").string(), model_.adapter_host(), *backend_).status().message(),
              "nowhere");
}

TEST_F(UnfitAdapters, ALinkOutOfTheFolderIsRefused) {
  write("adapter_config.json", read(adapter_path("llama/qv") + "/adapter_config.json"));
  std::filesystem::remove(folder_ / "adapter_model.safetensors");
  std::filesystem::create_symlink(adapter_path("llama/qv") + "/adapter_model.safetensors",
                                  folder_ / "adapter_model.safetensors");
  EXPECT_SAYS(load_adapter(folder_.string(), model_.adapter_host(), *backend_).status().message(), "symbolic link");
}

}  // namespace
}  // namespace quire::runner
