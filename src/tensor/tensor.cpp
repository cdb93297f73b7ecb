#include "tensor/tensor.h"

#include <fmt/format.h>

namespace quire {

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", (*this)[i]);
  return text + "]";
}

}  // namespace quire
