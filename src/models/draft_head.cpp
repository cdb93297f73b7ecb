#include "models/draft_head.h"

#include <variant>

#include "base/check.h"

namespace quire::models {

bool lends_vocabulary(const ModelConfig& target) {
  // Of recurrent families what is their own is in the layers.
  const bool is_plain =
      std::holds_alternative<std::monostate>(target.family) || std::holds_alternative<DeltaNetConfig>(target.family) ||
      std::holds_alternative<Mamba2Config>(target.family) || std::holds_alternative<ShortConvConfig>(target.family);
  return is_plain && target.embedding_scale == 1 && uses_vocabulary_head(target);
}

Status check_lends_vocabulary(const ModelConfig& target, int64_t hidden_size) {
  if (target.hidden_size != hidden_size) {
    return invalid_argument("the head is for a model of hidden_size {}, this one has {}", hidden_size,
                            target.hidden_size);
  }
  if (lends_vocabulary(target)) return {};
  return invalid_argument("the head reads the embeddings and the vocabulary of its model, which {} has otherwise",
                          target.architecture);
}

DraftHead& draft_head(Model& model) {
  auto* const head = dynamic_cast<DraftHead*>(&model);
  QUIRE_CHECK(head != nullptr);
  return *head;
}

}  // namespace quire::models
