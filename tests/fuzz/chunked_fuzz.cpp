// The chunked transfer coding: the same whatever the pieces it comes in, and what was decoded can be encoded again.
#include <algorithm>
#include <string>

#include "server/chunked_body.h"
#include "tests/fuzz/fuzz.h"

namespace {

using quire::server::ChunkedDecoder;

constexpr size_t kMostBytes = 4096;

struct Decoded {
  bool ok = true;
  bool done = false;
  size_t used = 0;
  std::string body;
  bool operator==(const Decoded&) const = default;
};

Decoded decode(std::string_view text, size_t step) {
  ChunkedDecoder decoder(kMostBytes);
  Decoded out;
  while (out.used < text.size() && !decoder.done()) {
    const std::string_view piece = text.substr(out.used, step);
    const auto used = decoder.decode(piece, out.body);
    if (!used.ok()) {
      quire::fuzz::check_error(used.status());
      return {.ok = false};
    }
    QUIRE_CHECK(*used == piece.size() || decoder.done());
    out.used += *used;
  }
  QUIRE_CHECK(out.body.size() <= kMostBytes);
  out.done = decoder.done();
  return out;
}

std::string encode(std::string_view body, size_t step) {
  std::string out;
  for (size_t at = 0; at < body.size(); at += step) {
    const std::string_view piece = body.substr(at, step);
    out += fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
  }
  return out + "0\r\n\r\n";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const quire::fuzz::CpuLimit limit;
  quire::fuzz::Input input(data, size);
  const size_t step = 1 + input.byte();
  const std::string_view text = input.rest();
  const Decoded whole = decode(text, text.size() + 1);
  QUIRE_CHECK(decode(text, step) == whole);
  QUIRE_CHECK(decode(text, 1) == whole);
  if (!whole.ok || !whole.done) return 0;
  const std::string again = encode(whole.body, step);
  QUIRE_CHECK((decode(again, step) == Decoded{.done = true, .used = again.size(), .body = whole.body}));
  return 0;
}
