#include "models/medusa.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/config_reader.h"
#include "models/draft_head.h"
#include "types/activation.h"

namespace quire::models {
namespace {

constexpr int64_t kMostHeads = 64;
constexpr int64_t kMostBlocks = 64;
constexpr int64_t kMostHidden = int64_t{1} << 20;
constexpr int64_t kMostTokens = int64_t{1} << 28;

// How the tensors are called.
class MedusaNames {
 public:
  explicit MedusaNames(const checkpoint::Checkpoint& checkpoint)
      : is_vllms_(checkpoint.find("blocks.0.layers.0.weight") != nullptr) {}

  std::string block(int64_t head, int64_t index) const {
    return is_vllms_ ? fmt::format("blocks.{}.layers.{}", head, index) : fmt::format("{}.{}.linear", head, index);
  }
  std::string head(int64_t head, int64_t num_blocks) const {
    return is_vllms_ ? fmt::format("lm_heads.{}", head) : fmt::format("{}.{}", head, num_blocks);
  }
  // What all tensors of a head begin with.
  std::vector<std::string> prefixes(int64_t head) const {
    if (!is_vllms_) return {fmt::format("{}.", head)};
    return {fmt::format("blocks.{}.", head), fmt::format("lm_heads.{}.", head)};
  }

 private:
  const bool is_vllms_;
};

const Shape* shape_of(const checkpoint::Checkpoint& checkpoint, const std::string& module) {
  const checkpoint::CheckpointTensor* tensor = checkpoint.find(module + ".weight");
  return tensor == nullptr ? nullptr : &tensor->view.shape;
}

int64_t count_heads(const checkpoint::Checkpoint& checkpoint, const MedusaNames& names) {
  int64_t count = 0;
  while (count < kMostHeads && shape_of(checkpoint, names.block(count, 0)) != nullptr) ++count;
  return count;
}

// The one head over the vocabulary that all share; empty: there is none.
std::string shared_head(const checkpoint::Checkpoint& checkpoint) {
  for (const char* name : {"lm_head", "lm_heads.0"}) {
    if (shape_of(checkpoint, name) != nullptr) return name;
  }
  return {};
}

// Which tokens of the larger vocabulary those are that can be guessed.
Result<std::vector<TokenId>> read_token_map(const checkpoint::Checkpoint& checkpoint, const MedusaConfig& config) {
  if (config.draft_vocab_size == config.vocab_size) return std::vector<TokenId>();
  const checkpoint::CheckpointTensor* tensor = checkpoint.find("token_map");
  if (tensor == nullptr) {
    return data_loss("token_map is missing: the heads have {} tokens of {}, and nothing says which",
                     config.draft_vocab_size, config.vocab_size);
  }
  if (tensor->view.dtype != DType::kI64 || tensor->view.shape != Shape{config.draft_vocab_size} ||
      tensor->view.data == nullptr) {
    return data_loss("token_map: expected {} whole numbers (I64)", config.draft_vocab_size);
  }
  const auto* numbers = static_cast<const int64_t*>(tensor->view.data);
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < config.draft_vocab_size; ++i) {
    if (numbers[i] < 0 || numbers[i] >= config.vocab_size) {
      return data_loss("token_map[{}] is {}: none of {} tokens", i, numbers[i], config.vocab_size);
    }
    ids.push_back(static_cast<TokenId>(numbers[i]));
  }
  return ids;
}

}  // namespace

Result<MedusaConfig> read_medusa_config(const checkpoint::Checkpoint& checkpoint) {
  const MedusaNames names(checkpoint);
  const Shape* first = shape_of(checkpoint, names.block(0, 0));
  if (first == nullptr || first->rank() != 2) {
    return data_loss("neither 0.0.linear.weight nor blocks.0.layers.0.weight is there: these are no heads of Medusa");
  }
  const ConfigReader reader(checkpoint.config());
  const auto either = [&](std::string_view one, std::string_view other) { return reader.has(one) ? one : other; };
  MedusaConfig out;
  QUIRE_ASSIGN_OR_RETURN(out.hidden_size, reader.integer_or("hidden_size", (*first)[1], 1, kMostHidden));
  const int64_t counted = count_heads(checkpoint, names);
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads,
                         reader.integer_or(either("medusa_num_heads", "num_heads"), counted, 1, kMostHeads));
  QUIRE_ASSIGN_OR_RETURN(const int64_t blocks,
                         reader.integer_or(either("medusa_num_layers", "num_hidden_layers"), 1, 1, kMostBlocks));
  out.num_heads = static_cast<int32_t>(heads);
  out.num_blocks = static_cast<int32_t>(blocks);
  QUIRE_ASSIGN_OR_RETURN(out.shares_head, reader.boolean_or("original_lm_head", false));
  QUIRE_ASSIGN_OR_RETURN(out.logits_scale, reader.number_or("logit_scale", 1));
  const std::string name = out.shares_head ? shared_head(checkpoint) : names.head(0, blocks);
  const Shape* of_head = name.empty() ? nullptr : shape_of(checkpoint, name);
  if (of_head == nullptr && !out.shares_head) return data_loss("{}.weight is missing", name);
  const int64_t rows = of_head == nullptr ? 0 : (*of_head)[0];
  QUIRE_ASSIGN_OR_RETURN(out.vocab_size, rows > 0 ? reader.integer_or("vocab_size", rows, 1, kMostTokens)
                                                  : reader.integer("vocab_size", 1, kMostTokens));
  out.draft_vocab_size = rows > 0 ? rows : out.vocab_size;
  if (out.draft_vocab_size > out.vocab_size) {
    return data_loss("{}.weight has {} rows, more than the {} tokens of vocab_size", name, rows, out.vocab_size);
  }
  return out;
}

Result<std::unique_ptr<MedusaHeads>> MedusaHeads::build(const MedusaConfig& config,
                                                        const checkpoint::Checkpoint& checkpoint, nn::Loader& loader) {
  const MedusaNames names(checkpoint);
  std::unique_ptr<MedusaHeads> heads(new MedusaHeads(config));
  const auto head_named = [&](const std::string& name) {
    heads->heads_.emplace_back(loader, name, config.hidden_size, config.draft_vocab_size, /*bias=*/false,
                               nn::WeightRole::kHead);
  };
  std::vector<std::string> elsewhere = {"token_map"};
  for (int64_t head = 0; head < config.num_heads; ++head) {
    std::vector<nn::Linear>& blocks = heads->blocks_.emplace_back();
    for (int64_t block = 0; block < config.num_blocks; ++block) {
      const std::string name = names.block(head, block);
      blocks.emplace_back(loader, name, config.hidden_size, config.hidden_size, loader.has(name + ".bias"));
    }
    if (!config.shares_head) head_named(names.head(head, config.num_blocks));
  }
  const std::string shared = config.shares_head ? shared_head(checkpoint) : std::string();
  if (!shared.empty()) head_named(shared);
  // Of more heads than the configuration names, and of those that are one and the same.
  if (config.shares_head) elsewhere.insert(elsewhere.end(), {"lm_head.", "lm_heads."});
  for (int64_t head = config.num_heads; head < kMostHeads; ++head) {
    std::ranges::move(names.prefixes(head), std::back_inserter(elsewhere));
  }
  const std::vector<std::string_view> prefixes(elsewhere.begin(), elsewhere.end());
  QUIRE_RETURN_IF_ERROR(loader.finish({}, {}, prefixes));
  QUIRE_ASSIGN_OR_RETURN(heads->ids_, read_token_map(checkpoint, config));
  return heads;
}

Status MedusaHeads::use_target(const Model& target) {
  const ModelConfig& of = target.config();
  if (of.hidden_size != config_.hidden_size) {
    return invalid_argument("the heads are for a model of hidden_size {}, this one has {}", config_.hidden_size,
                            of.hidden_size);
  }
  if (heads_.empty() && !lends_vocabulary(of)) {
    return invalid_argument("the heads read the vocabulary of their model, which {} has otherwise", of.architecture);
  }
  target_ = &target;
  return {};
}

ops::View MedusaHeads::logits(const nn::StepContext& step, int32_t index, const ops::ConstView& state) const {
  const auto head = static_cast<size_t>(index);
  const ops::View x = step.workspace.take(1, config_.hidden_size);
  const ops::View inner = step.workspace.take(1, config_.hidden_size);
  const ops::View out = step.workspace.take(1, config_.draft_vocab_size);
  if (!step.workspace.measures()) step.copy(state, x);
  for (const nn::Linear& block : blocks_[head]) {
    block(step, x, inner);
    step(ops::ActivationArgs{.function = Activation::kSilu,
                             .gated = false,
                             .in = inner,
                             .num_tokens = 1,
                             .size = config_.hidden_size,
                             .out = inner});
    step(ops::AddArgs{
        .hidden = x.floats(), .delta = inner.floats(), .delta_scale = 1, .num_tokens = 1, .size = config_.hidden_size});
  }
  if (!heads_.empty()) {
    heads_[heads_.size() == 1 ? 0 : head](step, x, out);
  } else if (target_ != nullptr) {
    target_->logits(step, x, out);
  }
  return out;
}

}  // namespace quire::models
