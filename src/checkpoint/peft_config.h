// adapter_config.json: how PEFT describes an adapter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "checkpoint/module_pattern.h"

namespace quire::checkpoint {

enum class AdapterKind { kLowRank, kPromptTuning, kPrefixTuning };

// Which modules of the base a configuration names.
class ModuleSelection {
 public:
  // `key` of `config`: a list of names, a regular expression or "all-linear"; absent or null: none. Errors:
  // invalid_argument.
  static Result<ModuleSelection> read(const boost::json::object& config, std::string_view key);
  bool empty() const { return names_.empty() && !pattern_ && !all_linear_; }
  bool all_linear() const { return all_linear_; }
  bool is_list() const { return !names_.empty(); }
  // Whether the list has the whole name.
  bool names_whole(std::string_view module) const { return std::ranges::find(names_, module) != names_.end(); }
  // is_linear: the module is a product and not the head, which "all-linear" stands for.
  Result<bool> selects(std::string_view module, bool is_linear) const;

 private:
  std::vector<std::string> names_;
  std::optional<ModulePattern> pattern_;
  bool all_linear_ = false;
};

// A number for modules whose names end with the key or match it, the first one that does.
class NumbersByModule {
 public:
  static Result<NumbersByModule> read(const boost::json::object& config, std::string_view key);
  Result<std::optional<double>> of(std::string_view module) const;

 private:
  struct Entry {
    std::string key;
    std::optional<ModulePattern> pattern;  // nullopt: the key is a plain name
    double number = 0;
  };
  std::vector<Entry> entries_;
};

struct PeftConfig {
  AdapterKind kind = AdapterKind::kLowRank;
  std::string base_model;  // as whoever trained it called it: for people
  // kLowRank:
  int64_t rank = 0;
  double alpha = 0;
  bool rank_stabilised = false;  // rsLoRA: alpha over the square root of the rank (Kalajdzievski, 2023)
  bool decomposed = false;       // DoRA: rows of weights have lengths of their own (Liu et al., 2024)
  NumbersByModule ranks;
  NumbersByModule alphas;
  ModuleSelection targets;
  ModuleSelection excluded;
  std::vector<int64_t> layers;             // empty: all
  std::vector<std::string> layer_lists;    // names before a layer's number; empty: any
  std::vector<std::string> saved_modules;  // trained whole
  // Tokens whose rows of a module were trained, by the end of its name; "" stands for the embedding.
  std::map<std::string, std::vector<int32_t>> trained_tokens;
  std::vector<std::string> parameters;  // ends of names, "mlp.experts.down_proj": target_parameters
  // kPromptTuning, kPrefixTuning:
  int64_t num_virtual_tokens = 0;

  // Whether the module has factors. Errors: those of patterns.
  Result<bool> adapts(std::string_view module, bool is_linear) const;
  bool adapts_parameter(std::string_view name) const;
  // nullptr: all rows of the module are the base's.
  const std::vector<int32_t>* tokens_of(std::string_view module) const;
  Result<int64_t> rank_of(std::string_view module) const;
  Result<double> scale_of(std::string_view module) const;
  bool saves(std::string_view module) const;
};

// Errors: invalid_argument for a field of the wrong kind or out of range; unimplemented for what changes an adapter's
// answers and is not built (QALoRA, ...), in a sentence that names it.
Result<PeftConfig> read_peft_config(const boost::json::object& config);

}  // namespace quire::checkpoint
