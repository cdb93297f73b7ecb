// Any text through tokenizers of every kind and back. Three bytes steer: which tokenizer, how the text is cut, how
// often it is repeated.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using namespace quire;

struct Subject {
  const char* file;
  bool is_exact = false;  // all bytes of well-formed text come back, and nothing untrusted becomes a special token
  std::unique_ptr<text::Tokenizer> tokenizer = nullptr;
};

text::Tokenizer& load(Subject& subject) {
  if (subject.tokenizer) return *subject.tokenizer;
  const std::string path = std::string(QUIRE_TEST_DATA) + "/tokenizers/" + subject.file;
  std::ifstream file(path, std::ios::binary);
  const std::string content(std::istreambuf_iterator<char>(file), {});
  auto made =
      path.ends_with(".json") ? text::Tokenizer::from_json(content) : text::Tokenizer::from_sentencepiece(content, "");
  QUIRE_CHECK_MSG(made.ok(), path);
  subject.tokenizer = std::move(made).value();
  return *subject.tokenizer;
}

Subject& subject_of(uint8_t choice) {
  static Subject subjects[] = {{"small_bpe.json", true},
                               {"gpt2_style_bpe.json", true},
                               {"llama3_style_bpe.json", true},
                               {"qwen_style_bpe_nfc.json"},
                               {"llama2_style_spm_bpe.json"},
                               {"unigram_nfkc.json"},
                               {"sentencepiece/bpe.model"},
                               {"sentencepiece/bpe_bytes.model"},
                               {"sentencepiece/bpe_suffix.model"},
                               {"sentencepiece/bpe_symbols.model"},
                               {"sentencepiece/unigram.model"},
                               {"sentencepiece/unigram_bytes.model"},
                               {"sentencepiece/unigram_suffix.model"},
                               {"sentencepiece/unigram_symbols.model"}};
  return subjects[choice % std::size(subjects)];
}

// Mostly once or a few times: long texts cost a fuzzer its time. From 240 on up to 65,536 times.
std::string repeated(std::string_view text, uint8_t steering) {
  constexpr size_t kMostBytes = 64 << 10;
  const int doublings = steering < 240 ? steering % 4 : steering - 239;
  std::string all(text);
  for (int i = 0; i < doublings && !all.empty() && all.size() * 2 <= kMostBytes; ++i) all += all;
  return all;
}

// The pieces of a text cut in three where the halves of `cut` say.
std::vector<text::TextPiece> pieces_of(const std::string& whole, uint8_t cut, bool trusted) {
  const size_t first = whole.size() * (cut & 15) / 16;
  const size_t second = first + (whole.size() - first) * (cut >> 4) / 16;
  return {{whole.substr(0, first), trusted},
          {whole.substr(first, second - first), trusted},
          {whole.substr(second), trusted}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  Subject& subject = subject_of(input.byte());
  const text::Tokenizer& tokenizer = load(subject);
  const uint8_t cut = input.byte();
  const uint8_t times = input.byte();
  const std::string text = repeated(input.rest(), times);

  const fuzz::CpuLimit limit;
  fuzz::check_tokenizer(tokenizer, text, 1 + cut % 7);
  const std::vector<TokenId> ids = tokenizer.encode(text, /*add_special_tokens=*/false);
  QUIRE_CHECK(tokenizer.encode(pieces_of(text, cut, /*trusted=*/true), false) == ids);
  const text::TextPiece untrusted[] = {{text, false}};
  const std::vector<TokenId> plain = tokenizer.encode(untrusted, false);
  QUIRE_CHECK(tokenizer.encode(pieces_of(text, cut, /*trusted=*/false), false) == plain);
  if (!subject.is_exact) return 0;

  std::string well_formed;
  text::append_lossy_utf8(text, well_formed);
  QUIRE_CHECK(tokenizer.decode(ids, /*skip_special_tokens=*/false) == well_formed);
  QUIRE_CHECK(tokenizer.decode(plain, /*skip_special_tokens=*/false) == well_formed);
  QUIRE_CHECK(std::none_of(plain.begin(), plain.end(), [&](TokenId id) { return tokenizer.is_special(id); }));
  return 0;
}
