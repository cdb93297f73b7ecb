// tokenizer.json: what is read is a tokenizer that keeps its promises, what is not is an error with text.
#include "tests/fuzz/fuzz.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  const fuzz::CpuLimit limit;
  const auto tokenizer = text::Tokenizer::from_json(fuzz::Input(data, size).rest());
  if (tokenizer.ok()) {
    fuzz::check_tokenizer(**tokenizer);
  } else {
    fuzz::check_error(tokenizer.status());
  }
  return 0;
}
