// A SentencePiece model, and behind a separator the tokenizer_config.json beside it.
#include "tests/fuzz/fuzz.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  const fuzz::CpuLimit limit;
  fuzz::Input input(data, size);
  const std::string_view model = input.until("\n#config#\n");
  const auto tokenizer = text::Tokenizer::from_sentencepiece(model, input.rest());
  if (tokenizer.ok()) {
    fuzz::check_tokenizer(**tokenizer);
  } else {
    fuzz::check_error(tokenizer.status());
  }
  return 0;
}
