#include "types/engine_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace quire {
namespace {

using ::testing::HasSubstr;

// A type's words, those that name() gives back first of each choice.
template <typename Choice>
struct Spelling {
  const char* text;
  Choice choice;
  bool is_name = true;
};

template <typename Choice>
void expect_words(const std::vector<Spelling<Choice>>& words) {
  for (const Spelling<Choice>& word : words) {
    const Result<Choice> parsed = parse_choice<Choice>(word.text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(*parsed, word.choice) << word.text;
    if (word.is_name) {
      EXPECT_EQ(name(word.choice), word.text);
    }
  }
}

// Of each text, the sentence whole: what was found and what there is.
template <typename Choice>
void expect_refused(const std::string& field, const std::string& known) {
  for (const std::string text : {"AUTO", "int9", "int8 ", "cpu:1", "cuda:", "cuda:-1", "cuda:x"}) {
    const Result<Choice> parsed = parse_choice<Choice>(text);
    ASSERT_FALSE(parsed.ok()) << field << " " << text;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(parsed.status().message(), field + " \"" + text + "\" is not known; choose one of: " + known);
  }
}

TEST(EngineChoices, WordsAreReadAndGivenBack) {
  expect_words<LoadFormat>({{"auto", LoadFormat::kAuto}, {"dummy", LoadFormat::kDummy}});
  expect_words<WeightDType>({{"auto", WeightDType::kAuto},
                             {"float32", WeightDType::kFloat32},
                             {"float", WeightDType::kFloat32, false},
                             {"float16", WeightDType::kFloat16},
                             {"half", WeightDType::kFloat16, false},
                             {"bfloat16", WeightDType::kBFloat16}});
  expect_words<Quantization>({{"none", Quantization::kNone},
                              {"", Quantization::kNone, false},
                              {"int8", Quantization::kInt8},
                              {"int4", Quantization::kInt4},
                              {"fp8", Quantization::kFp8},
                              {"awq", Quantization::kAwq},
                              {"awq_marlin", Quantization::kAwq, false},
                              {"gptq", Quantization::kGptq},
                              {"gptq_marlin", Quantization::kGptq, false},
                              {"compressed-tensors", Quantization::kCompressedTensors},
                              {"bitsandbytes", Quantization::kBitsandbytes},
                              {"modelopt", Quantization::kModelopt},
                              {"torchao", Quantization::kTorchao},
                              {"hqq", Quantization::kHqq},
                              {"fbgemm_fp8", Quantization::kFbgemmFp8},
                              {"mxfp4", Quantization::kMxfp4},
                              {"quark", Quantization::kQuark}});
  expect_words<ActivationDType>({{"auto", ActivationDType::kAuto},
                                 {"float32", ActivationDType::kFloat32},
                                 {"bfloat16", ActivationDType::kBFloat16},
                                 {"int8", ActivationDType::kInt8},
                                 {"int12", ActivationDType::kInt12},
                                 {"int16", ActivationDType::kInt16}});
  expect_words<KvCacheDType>({{"auto", KvCacheDType::kAuto},
                              {"float32", KvCacheDType::kFloat32},
                              {"float16", KvCacheDType::kFloat16},
                              {"bfloat16", KvCacheDType::kBFloat16},
                              {"fp8", KvCacheDType::kFp8E4M3},
                              {"fp8_e4m3", KvCacheDType::kFp8E4M3, false},
                              {"fp8_e5m2", KvCacheDType::kFp8E5M2},
                              {"int8", KvCacheDType::kInt8}});
  expect_words<PreemptionMode>(
      {{"recompute", PreemptionMode::kRecompute}, {"swap", PreemptionMode::kSwap}, {"auto", PreemptionMode::kAuto}});
  expect_words<SchedulingPolicy>({{"fcfs", SchedulingPolicy::kFcfs}, {"priority", SchedulingPolicy::kPriority}});
  expect_words<AttentionBackend>({{"auto", AttentionBackend::kAuto},
                                  {"native", AttentionBackend::kNative},
                                  {"flashinfer", AttentionBackend::kFlashInfer},
                                  {"fa3", AttentionBackend::kFa3}});
  expect_words<Isa>({{"auto", Isa::kAuto},
                     {"portable", Isa::kPortable},
                     {"avx2", Isa::kAvx2},
                     {"avx512", Isa::kAvx512},
                     {"avx512_bf16", Isa::kAvx512Bf16}});
  expect_words<DeviceChoice>({{"auto", DeviceChoice()},
                              {"cpu", DeviceChoice::cpu()},
                              {"cuda", DeviceChoice::cuda()},
                              {"cuda:0", DeviceChoice::cuda(0), false},
                              {"cuda:7", DeviceChoice::cuda(7)}});
}

TEST(EngineChoices, OtherWordsAreRefusedWithAllThatThereAre) {
  expect_refused<LoadFormat>("load_format", "auto, dummy");
  expect_refused<WeightDType>("dtype", "auto, float32, float, float16, half, bfloat16");
  expect_refused<Quantization>("quantization",
                               "int8, int4, fp8, awq, awq_marlin, gptq, gptq_marlin, compressed-tensors, "
                               "bitsandbytes, modelopt, torchao, hqq, fbgemm_fp8, mxfp4, quark, none");
  expect_refused<ActivationDType>("activation_dtype", "auto, float32, bfloat16, int8, int12, int16");
  expect_refused<KvCacheDType>("kv_cache_dtype", "auto, float32, float16, bfloat16, fp8, fp8_e4m3, fp8_e5m2, int8");
  expect_refused<PreemptionMode>("preemption_mode", "recompute, swap, auto");
  expect_refused<SchedulingPolicy>("scheduling_policy", "fcfs, priority");
  expect_refused<AttentionBackend>("attention_backend", "auto, native, flashinfer, fa3");
  expect_refused<Isa>("isa", "auto, portable, avx2, avx512, avx512_bf16");
  expect_refused<DeviceChoice>("device", "auto, cpu, cuda, cuda:N");
}

TEST(EngineChoices, AFormatThatAFileSaysItselfIsToBeLeftOut) {
  for (const char* text : {"safetensors", "gguf"}) {
    const auto parsed = parse_choice<LoadFormat>(text);
    ASSERT_FALSE(parsed.ok());
    EXPECT_THAT(parsed.status().message(), HasSubstr(std::string("load_format \"") + text + "\": leave it out"));
  }
}

struct Combination {
  const char* refused;  // in the sentence; empty: nothing is
  std::function<void(EngineConfig&)> set;
  DeviceChoice::Kind device = DeviceChoice::Kind::kAuto;
  StatusCode code = StatusCode::kInvalidArgument;
};

constexpr auto kCpu = DeviceChoice::Kind::kCpu;
constexpr auto kCuda = DeviceChoice::Kind::kCuda;

const Combination kCombinations[] = {
    {"", [](EngineConfig&) {}},
    {"", [](EngineConfig&) {}, kCpu},
    {"", [](EngineConfig&) {}, kCuda},
    {"attention_backend \"flashinfer\" reads no caches of float32; with kv_cache_dtype \"float32\" choose native",
     [](EngineConfig& c) {
       c.attention_backend = AttentionBackend::kFlashInfer;
       c.kv_cache_dtype = KvCacheDType::kFloat32;
     }},
    {"",
     [](EngineConfig& c) {
       c.attention_backend = AttentionBackend::kNative;
       c.kv_cache_dtype = KvCacheDType::kFloat32;
       c.batch_invariant = true;
     }},
    {"attention_backend \"fa3\" is for --device cuda; on a CPU choose native",
     [](EngineConfig& c) { c.attention_backend = AttentionBackend::kFa3; }, kCpu},
    {"", [](EngineConfig& c) { c.attention_backend = AttentionBackend::kFa3; }, kCuda},
    {"attention_backend \"fa3\" sums in an order that depends on the rest of the batch, which batch_invariant rules "
     "out: leave out one of them",
     [](EngineConfig& c) {
       c.attention_backend = AttentionBackend::kFa3;
       c.batch_invariant = true;
     },
     kCuda},
    {"isa \"avx2\" is for --device cpu", [](EngineConfig& c) { c.isa = Isa::kAvx2; }, kCuda},
    {"", [](EngineConfig& c) { c.isa = Isa::kAvx2; }, kCpu},
    {"", [](EngineConfig& c) { c.isa = Isa::kAvx2; }},
    {"activation_dtype \"int8\" on a card: supported there: auto, float32",
     [](EngineConfig& c) { c.activation_dtype = ActivationDType::kInt8; }, kCuda, StatusCode::kUnimplemented},
    {"", [](EngineConfig& c) { c.activation_dtype = ActivationDType::kFloat32; }, kCuda},
    {"", [](EngineConfig& c) { c.activation_dtype = ActivationDType::kInt8; }, kCpu},
    {"preemption_mode swap needs a swap_space of more than 0 GiB",
     [](EngineConfig& c) { c.preemption_mode = PreemptionMode::kSwap; }},
    {"",
     [](EngineConfig& c) {
       c.preemption_mode = PreemptionMode::kSwap;
       c.swap_space = 0.5;
     }},
    {"max_num_partial_prefills is 2, but without chunked prefill there are no partial ones",
     [](EngineConfig& c) {
       c.enable_chunked_prefill = false;
       c.max_num_partial_prefills = 2;
     }},
    {"", [](EngineConfig& c) { c.max_num_partial_prefills = 2; }},
    // Out of range by themselves.
    {"block_size is 0, expected 1 to 1024", [](EngineConfig& c) { c.block_size = 0; }},
    {"block_size is 1025, expected 1 to 1024", [](EngineConfig& c) { c.block_size = 1025; }},
    {"max_num_seqs is 0, expected at least 1", [](EngineConfig& c) { c.max_num_seqs = 0; }},
    {"max_num_batched_tokens is -1, expected at least 1, or 0", [](EngineConfig& c) { c.max_num_batched_tokens = -1; }},
    {"num_gpu_blocks_override is -1, expected at least 0", [](EngineConfig& c) { c.num_gpu_blocks_override = -1; }},
    {"swap_space is -1 GiB, expected at least 0", [](EngineConfig& c) { c.swap_space = -1; }},
    {"kv_cache_memory_bytes is -1, expected at least 0", [](EngineConfig& c) { c.kv_cache_memory_bytes = -1; }},
    {"memory utilization is 1.5, expected 0", [](EngineConfig& c) { c.memory_utilization = 1.5; }},
    {"max_cudagraph_capture_size is -1, expected", [](EngineConfig& c) { c.max_cudagraph_capture_size = -1; }},
    {"priority_ageing_tokens is 0, expected more than 0", [](EngineConfig& c) { c.priority_ageing_tokens = 0; }},
    {"num_scheduler_steps is 65, expected 1 to 64", [](EngineConfig& c) { c.num_scheduler_steps = 65; }},
    {"num_scheduler_steps is 2 with pipeline_parallel_size 3: a pipeline has a step for each of its stages",
     [](EngineConfig& c) { c.num_scheduler_steps = 2, c.pipeline_parallel_size = 3; }},
    {"max_num_partial_prefills is 0, expected at least 1", [](EngineConfig& c) { c.max_num_partial_prefills = 0; }},
    {"flight_recorder_steps is -1, expected at least 0", [](EngineConfig& c) { c.flight_recorder_steps = -1; }},
};

TEST(EngineConfig, WhatCannotGoTogetherIsRefusedWithWhatToDo) {
  for (const Combination& combination : kCombinations) {
    EngineConfig config;
    combination.set(config);
    const Status status = validate(config, combination.device);
    const std::string expected = combination.refused;
    EXPECT_EQ(status.ok(), expected.empty()) << status.message() << " (expected: " << expected << ")";
    EXPECT_THAT(status.message(), HasSubstr(expected));
    if (!expected.empty()) {
      EXPECT_EQ(status.code(), combination.code) << expected;
    }
  }
}

TEST(EngineConfig, IsCheckedAgainstTheDeviceThatItNames) {
  EngineConfig config;
  config.isa = Isa::kAvx2;
  EXPECT_TRUE(validate(config).ok());
  config.device = DeviceChoice::cuda(1);
  EXPECT_FALSE(validate(config).ok());
}

}  // namespace
}  // namespace quire
