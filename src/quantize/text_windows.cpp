#include "quantize/text_windows.h"

#include <fstream>
#include <iterator>

#include "base/named_file.h"

namespace quire::quantize {

Result<std::vector<TokenId>> read_ids(const std::string& path, const text::Tokenizer& tokenizer) {
  QUIRE_RETURN_IF_ERROR(check_file(path, FileUse::kReadOnce));
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found("{}: cannot be read, expected a file of plain text", path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<TokenId> ids = tokenizer.encode(text, /*add_special_tokens=*/false);
  if (ids.size() < 2) return invalid_argument("{}: {} tokens of text, expected two or more", path, ids.size());
  return ids;
}

std::vector<TokenId> first_ids(const text::Tokenizer& tokenizer) {
  const std::vector<TokenId> bare = tokenizer.encode("a", false);
  const std::vector<TokenId> framed = tokenizer.encode("a", true);
  if (framed.size() > bare.size() && framed.front() != bare.front()) return {framed.front()};
  return {};
}

}  // namespace quire::quantize
