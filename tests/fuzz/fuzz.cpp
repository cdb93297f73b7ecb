#include "tests/fuzz/fuzz.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include <boost/json.hpp>

#include "base/log.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace quire::fuzz {
namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

#ifdef QUIRE_FUZZ_SLOW
constexpr double kMostSeconds = 10;
#else
constexpr double kMostSeconds = 1;
#endif

}  // namespace

// Warnings about each input are not what a run is read for.
CpuLimit::CpuLimit() : started_(cpu_seconds()) {
  silence_log();
}

CpuLimit::~CpuLimit() {
  const double taken = cpu_seconds() - started_;
  QUIRE_CHECK_MSG(taken <= kMostSeconds, fmt::format("{:.2f} s for one input, at most {} s", taken, kMostSeconds));
}

// Sanitizers and what libFuzzer counts make a target some ten times slower: these are 0.5 us a byte without them, where
// a request's body takes some 0.02.
TimePerByte::TimePerByte(size_t bytes) : most_(0.5 + 5e-6 * static_cast<double>(bytes)), started_(cpu_seconds()) {}

TimePerByte::~TimePerByte() {
#ifdef QUIRE_FUZZ_CAMPAIGN
  const double taken = cpu_seconds() - started_;
  QUIRE_CHECK_MSG(taken <= most_, fmt::format("{:.2f} s for one input, at most {:.2f} s for its size", taken, most_));
#endif
}

namespace {

void collect(boost::json::value& value, std::vector<boost::json::value*>& values) {
  if (values.size() > 2000) return;
  values.push_back(&value);
  if (auto* array = value.if_array()) {
    for (boost::json::value& item : *array) collect(item, values);
  } else if (auto* object = value.if_object()) {
    for (auto& member : *object) collect(member.value(), values);
  }
}

// About so many bytes of it, of whatever it has.
void repeat(boost::json::value& value, size_t bytes) {
  if (auto* text = value.if_string()) {
    const std::string once = text->empty() ? "a" : std::string(*text);
    std::string grown;
    while (grown.size() < bytes) grown += once;
    *text = grown;
  } else if (auto* array = value.if_array()) {
    const boost::json::array once = array->empty() ? boost::json::array{nullptr} : *array;
    const size_t each = boost::json::serialize(once).size();
    for (size_t at = 0; at < bytes; at += each) array->insert(array->end(), once.begin(), once.end());
  } else if (auto* object = value.if_object()) {
    const boost::json::value once = object->empty() ? boost::json::value(nullptr) : object->begin()->value();
    const std::string key = object->empty() ? "k" : std::string(object->begin()->key());
    const size_t each = key.size() + 8 + boost::json::serialize(once).size();
    for (size_t at = 0; at < bytes; at += each) object->emplace(key + std::to_string(at), once);
  } else {
    const boost::json::value once = value;
    value = boost::json::array(bytes / (boost::json::serialize(once).size() + 1) + 1, once);
  }
}

}  // namespace

std::string grown(std::string_view json, uint8_t where, uint8_t size) {
  constexpr int kMostPower = 22;
  constexpr uint8_t kMostSize = 64;  // of most bytes a mutator comes upon nothing is grown
  if (size == 0 || size > kMostSize) return std::string(json);
  boost::json::parse_options options;
  options.max_depth = 64;
  boost::system::error_code error;
  boost::json::value root = boost::json::parse(json, error, {}, options);
  if (error) return std::string(json);
  std::vector<boost::json::value*> values;
  collect(root, values);
  const size_t bytes = size_t{1} << std::min(10 + size / 5, kMostPower);
  if (json.size() < bytes) repeat(*values[where % values.size()], bytes - json.size());
  return boost::json::serialize(root);
}

uint8_t Input::byte() {
  if (left_.empty()) return 0;
  const auto first = static_cast<uint8_t>(left_.front());
  left_.remove_prefix(1);
  return first;
}

std::string_view Input::until(std::string_view separator) {
  const size_t at = left_.find(separator);
  const std::string_view taken = left_.substr(0, at);
  left_.remove_prefix(at == std::string_view::npos ? left_.size() : at + separator.size());
  return taken;
}

AlignedCopy::AlignedCopy(std::string_view content) : size_(content.size()) {
  void* memory = nullptr;
  QUIRE_CHECK(posix_memalign(&memory, 64, std::max<size_t>(size_, 1)) == 0);
  data_.reset(static_cast<std::byte*>(memory));
  if (size_ > 0) std::memcpy(memory, content.data(), size_);
}

void check_error(const Status& status) {
  QUIRE_CHECK(!status.ok());
  QUIRE_CHECK(!status.message().empty());
  QUIRE_CHECK_MSG(text::is_valid_utf8(status.message()), status.message());
}

void touch(const void* data, int64_t size) {
  uint8_t sum = 0;
  for (int64_t i = 0; i < size; ++i) sum = static_cast<uint8_t>(sum + static_cast<const uint8_t*>(data)[i]);
  volatile uint8_t kept = sum;  // so that the reads are not left out
  (void)kept;
}

void check_tokenizer(const text::Tokenizer& tokenizer, std::string_view text, size_t step) {
  const std::vector<TokenId> ids = tokenizer.encode(text, /*add_special_tokens=*/true);
  for (const TokenId id : ids) {
    QUIRE_CHECK_MSG(id >= 0 && id < tokenizer.vocab_size(), fmt::format("id {} of {}", id, tokenizer.vocab_size()));
  }
  for (const bool skip_special : {false, true}) {
    const std::string decoded = tokenizer.decode(ids, skip_special);
    QUIRE_CHECK(text::is_valid_utf8(decoded));
    text::IncrementalDetokenizer detokenizer(tokenizer, skip_special);
    std::string grown;
    for (size_t at = 0; at < ids.size(); at += step) {
      const std::string more = detokenizer.append(std::span(ids).subspan(at, std::min(step, ids.size() - at)));
      QUIRE_CHECK(text::is_valid_utf8(more));
      grown += more;
    }
    grown += detokenizer.finish();
    QUIRE_CHECK_MSG(grown == decoded, fmt::format("{:?} but {:?}", grown, decoded));
  }
}

void check_tokenizer(const text::Tokenizer& tokenizer) {
  QUIRE_CHECK(tokenizer.vocab_size() >= 0);
  QUIRE_CHECK(!tokenizer.description().empty());
  const auto most =
      static_cast<TokenId>(std::min<int64_t>(tokenizer.vocab_size(), std::numeric_limits<TokenId>::max()));
  const TokenId kIds[] = {0, 1, most / 2, most - 1, most, std::numeric_limits<TokenId>::max(), -1, most - 2, -2};
  for (const TokenId id : kIds) {
    (void)tokenizer.token_bytes(id);
    (void)tokenizer.is_special(id);
    if (const auto token = tokenizer.id_to_token(id)) (void)tokenizer.token_to_id(*token);
  }
  for (const bool skip_special : {false, true}) {
    QUIRE_CHECK(text::is_valid_utf8(tokenizer.decode(kIds, skip_special)));
  }
  constexpr std::string_view kTexts[] = {
      "",
      " ",
      "Hello, world! It's 12345.",
      "  two  spaces\n\n\ttab ",
      "caf\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD",
      "\xFF<s>\xE2\x96\x81</s>\xC0\x80\xED\xA0\x80[CLS]",
      std::string_view("\0a\0", 3),
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
  for (const std::string_view text : kTexts) check_tokenizer(tokenizer, text, 1 + text.size() % 3);
}

}  // namespace quire::fuzz
