#include "bench/sharegpt.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include <boost/json.hpp>

#include "base/named_file.h"

namespace quire::bench {
namespace {

namespace json = boost::json;

// Follows nesting and strings, no more: the elements themselves are parsed where they are used.
class ListScanner {
 public:
  // False when the text is no list.
  bool scan(std::string_view piece) {
    for (size_t i = 0; i < piece.size(); ++i, ++offset_) {
      if (in_string_) {
        skip_in_string(piece, i);
      } else if (!step(piece[i])) {
        return false;
      }
      if (ended()) return true;
    }
    return true;
  }
  bool started() const { return started_; }
  bool ended() const { return started_ && depth_ == 0; }
  std::vector<JsonElement> take_elements() { return std::move(elements_); }

 private:
  void skip_in_string(std::string_view piece, size_t i) {
    if (escaped_) {
      escaped_ = false;
    } else if (piece[i] == '\\') {
      escaped_ = true;
    } else if (piece[i] == '"') {
      in_string_ = false;
    }
  }
  bool step(char c) {
    if (!started_) {
      if (c == '[') {
        started_ = true;
        depth_ = 1;
        return true;
      }
      return c == ' ' || c == '\n' || c == '\r' || c == '\t' || static_cast<unsigned char>(c) >= 0x80;  // a BOM
    }
    if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      if (depth_ == 1) begin_ = offset_;
      ++depth_;
    } else if (c == '}' || c == ']') {
      --depth_;
      if (depth_ == 1) elements_.push_back({begin_, offset_ + 1 - begin_});
    }
    return true;
  }

  int64_t offset_ = 0;
  int64_t begin_ = 0;
  int64_t depth_ = 0;
  bool started_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
  std::vector<JsonElement> elements_;
};

const json::string* text_of(const json::value& turn) {
  const json::object* object = turn.if_object();
  const json::value* text = object != nullptr ? object->if_contains("value") : nullptr;
  return text != nullptr ? text->if_string() : nullptr;
}

std::string read_element(std::istream& in, const JsonElement& element) {
  std::string text(static_cast<size_t>(element.bytes), '\0');
  in.clear();
  in.seekg(element.offset);
  in.read(text.data(), element.bytes);
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

}  // namespace

Result<std::vector<JsonElement>> find_list_elements(std::istream& in) {
  constexpr size_t kPiece = 1 << 20;
  std::string piece(kPiece, '\0');
  ListScanner scanner;
  while (in.read(piece.data(), kPiece), in.gcount() > 0) {
    const std::string_view read(piece.data(), static_cast<size_t>(in.gcount()));
    if (!scanner.scan(read) || scanner.ended()) break;
  }
  if (!scanner.started())
    return invalid_argument("expected a JSON list of conversations, found no \"[\" at its beginning");
  return scanner.take_elements();
}

std::optional<Turn> first_turn(std::string_view conversation_json) {
  json::error_code error;
  const json::value value = json::parse(conversation_json, error);
  if (error) return std::nullopt;
  const json::object* object = value.if_object();
  const json::value* conversations = object != nullptr ? object->if_contains("conversations") : nullptr;
  const json::array* turns = conversations != nullptr ? conversations->if_array() : nullptr;
  if (turns == nullptr || turns->size() < 2) return std::nullopt;
  const json::string* question = text_of((*turns)[0]);
  const json::string* answer = text_of((*turns)[1]);
  if (question == nullptr || answer == nullptr) return std::nullopt;
  return Turn{std::string(*question), std::string(*answer)};
}

bool has_usable_lengths(int64_t prompt_len, int64_t output_len, bool is_output_len_forced) {
  constexpr int64_t kFewest = 4;
  constexpr int64_t kLongestPrompt = 1024;
  constexpr int64_t kLongest = 2048;
  return prompt_len >= kFewest && (is_output_len_forced || output_len >= kFewest) && prompt_len <= kLongestPrompt &&
         prompt_len + output_len <= kLongest;
}

Result<std::vector<Sample>> sharegpt_samples(const DatasetOptions& options, const text::Tokenizer& tokenizer,
                                             std::mt19937_64& random) {
  if (Status status = check_file(options.path, FileUse::kReadAgain); !status.ok()) {
    return std::move(status).with_prefix("--dataset-path: ");
  }
  std::ifstream file(options.path, std::ios::binary);
  if (!file) return not_found("--dataset-path: the file \"{}\" cannot be read", options.path);
  auto elements = find_list_elements(file);
  if (!elements.ok()) return elements.status().with_prefix(options.path + ": ");
  std::shuffle(elements->begin(), elements->end(), random);

  std::vector<Sample> samples;
  const auto wanted = static_cast<size_t>(options.num_prompts);
  for (const JsonElement& element : *elements) {
    if (samples.size() == wanted) return samples;
    std::optional<Turn> turn = first_turn(read_element(file, element));
    if (!turn) continue;
    Sample sample{.prompt = std::move(turn->question)};
    sample.prompt_ids = tokenizer.encode(sample.prompt, /*add_special_tokens=*/false);
    sample.output_len = options.sharegpt_output_len
                            ? *options.sharegpt_output_len
                            : static_cast<int64_t>(tokenizer.encode(turn->answer, /*add_special_tokens=*/false).size());
    if (!has_usable_lengths(sample.prompt_len(), sample.output_len, options.sharegpt_output_len.has_value())) continue;
    samples.push_back(std::move(sample));
  }
  if (samples.empty()) {
    return invalid_argument("{}: none of its {} conversations has two turns of usable lengths", options.path,
                            elements->size());
  }
  for (size_t i = 0; samples.size() < wanted; ++i) samples.push_back(Sample(samples[i]));
  return samples;
}

}  // namespace quire::bench
