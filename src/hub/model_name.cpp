#include "hub/model_name.h"

#include <algorithm>

#include "base/hex.h"

namespace quire::hub {
namespace {

constexpr size_t kMostRepositoryBytes = 96;  // the Hub's own bound
constexpr size_t kMostPathBytes = 1024;
constexpr size_t kMostComponentBytes = 255;

bool is_name_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
}

bool is_name_part(std::string_view part) {
  return !part.empty() && part.front() != '.' && part.front() != '-' && part.back() != '.' && part.back() != '-' &&
         std::all_of(part.begin(), part.end(), is_name_character) && part.find("..") == part.npos &&
         part.find("--") == part.npos;
}

bool is_repository(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == text.npos || text.size() > kMostRepositoryBytes) return false;
  const std::string_view name = text.substr(slash + 1);
  if (!is_name_part(text.substr(0, slash)) || !is_name_part(name) || name.ends_with(".git")) return false;
  // A file's name, of which no model's ends.
  for (const std::string_view ending : {".gguf", ".safetensors", ".json"}) {
    if (name.ends_with(ending)) return false;
  }
  return true;
}

}  // namespace

std::string ModelName::folder() const {
  const size_t slash = repository.find('/');
  return "models--" + repository.substr(0, slash) + "--" + repository.substr(slash + 1);
}

bool looks_like_model_name(std::string_view text) {
  const size_t colon = text.find(':');
  return is_repository(text.substr(0, colon)) && (colon == text.npos || is_safe_path(text.substr(colon + 1)));
}

Result<ModelName> parse_model_name(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view repository = text.substr(0, colon);
  if (!is_repository(repository)) {
    return invalid_argument("\"{}\" is no model's name on the Hub: one looks like ORG/NAME or ORG/NAME:Q4_K_M",
                            text.substr(0, 200));
  }
  ModelName name{.repository = std::string(repository), .gguf = {}};
  if (colon == text.npos) return name;
  name.gguf = text.substr(colon + 1);
  if (!is_safe_path(name.gguf)) {
    return invalid_argument("\"{}\": after the colon stands a GGUF type (Q4_K_M) or the path of a GGUF file in {}",
                            text.substr(0, 200), name.repository);
  }
  return name;
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kMostPathBytes) return false;
  if (std::any_of(path.begin(), path.end(),
                  [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f' || c == '\\'; }))
    return false;
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view component = path.substr(0, slash);
    if (component.empty() || component == "." || component == ".." || component.size() > kMostComponentBytes)
      return false;
    if (slash == path.npos) return true;
    path.remove_prefix(slash + 1);
  }
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && std::all_of(text.begin(), text.end(), [](char c) { return hex_digit(c) >= 0; });
}

}  // namespace quire::hub
