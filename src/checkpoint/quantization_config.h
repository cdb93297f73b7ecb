// What config.json's quantization_config says, typed: how weights are stored, and what becomes of activations. Read
// once when a checkpoint is opened; what nothing here reads is refused then, by the name of the field.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "checkpoint/module_pattern.h"

namespace quire::checkpoint {

enum class QuantMethod : uint8_t {
  kFp8,
  kFbgemmFp8,
  kModelopt,
  kCompressedTensors,
  kAwq,
  kGptq,
  kBitsandbytes,
  kTorchao,
  kHqq,
  kMxfp4,  // of stacks of experts, as gpt-oss's files have them
  kQuark,
};

// As --quantization and quant_method spell it.
std::string_view name(QuantMethod method);

// How numbers are rounded: compressed-tensors' weights and input_activations.
struct RoundingScheme {
  enum class Per : uint8_t { kTensor, kChannel, kToken, kGroup, kBlock };
  int bits = 8;
  bool is_float = false;
  bool symmetric = true;
  bool dynamic = false;        // scales are made of the numbers themselves, not stored
  bool has_shared = false;     // "tensor_group": a stored number beside them, which all of a tensor shares
  bool has_exponents = false;  // scales are powers of two, stored as their exponents (OCP MX)
  Per per = Per::kTensor;
  int64_t group_size = 0;                                           // of kGroup
  std::optional<std::pair<int64_t, int64_t>> block = std::nullopt;  // of kBlock: rows and columns
};

// Modules that are stored alike: a group of compressed-tensors, or what Quark says of some modules.
struct ModuleGroup {
  std::string format = {};  // "pack-quantized"; of Quark also "int4" and "uint4"
  RoundingScheme weights = {};
  std::optional<RoundingScheme> inputs = {};
  bool all_linear = false;                  // every module that is a matrix
  std::vector<ModulePattern> targets = {};  // others by name
};

// What is different for some modules of GPTQ.
struct GptqOverride {
  ModulePattern pattern;
  bool skipped = false;  // they are not quantised
  int bits = 0;          // 0: as for all
  int64_t group_size = 0;
};

struct QuantizationConfig {
  QuantMethod method = QuantMethod::kFp8;
  // AWQ, GPTQ, and of torchao the bits that an int8 stands for.
  int bits = 0;
  int64_t group_size = 0;        // -1: a whole column
  bool is_gemv = false;          // of AWQ: outputs first
  bool zeros_are_whole = false;  // of GPTQ: format gptq_v2, where zeros are not stored less one
  bool is_marlin = false;        // of GPTQ: in Marlin's tiles
  std::vector<GptqOverride> overrides;
  // compressed-tensors and Quark.
  std::vector<ModuleGroup> groups;
  std::vector<ModulePattern> ignored;
  // bitsandbytes.
  bool four_bits = false;
  float outlier_threshold = 0;

  // nullopt: there is none. `config`: of config.json. Errors: unimplemented and data_loss, naming the field.
  static Result<std::optional<QuantizationConfig>> parse(const boost::json::object& config);

  // The group of a module whose weight is stored in codes; names and expressions come before "Linear". Errors:
  // data_loss where it is ignored or no group has it.
  Result<const ModuleGroup*> group_of(std::string_view module) const;
};

// For people: "awq, 4 bits", "compressed-tensors, W8A8", with every width that there is.
std::string describe(const QuantizationConfig& config);

}  // namespace quire::checkpoint
