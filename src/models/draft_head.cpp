#include "models/draft_head.h"

#include <variant>

#include "base/check.h"

namespace quire::models {

bool lends_vocabulary(const ModelConfig& target) {
  const bool is_plain = std::holds_alternative<std::monostate>(target.family);
  return is_plain && target.embedding_scale == 1 && uses_vocabulary_head(target);
}

DraftHead& draft_head(Model& model) {
  auto* const head = dynamic_cast<DraftHead*>(&model);
  QUIRE_CHECK(head != nullptr);
  return *head;
}

}  // namespace quire::models
