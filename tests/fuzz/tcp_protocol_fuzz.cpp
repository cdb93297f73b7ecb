// What ranks say to each other over TCP: what can be read is written again as it was, and takes no more memory than its
// bytes. The first byte chooses which kind is expected.
#include "comm/tcp_protocol.h"

#include "tests/fuzz/fuzz.h"

namespace {

using namespace quire::comm;

constexpr std::string_view kSecretOfFuzz = "a secret of this target";

void check_join(std::string_view bytes) {
  const auto read = decode_join(bytes, kSecretOfFuzz, {});
  if (!read.ok()) return quire::fuzz::check_error(read.status());
  const TcpKeys keys = {.secret = kSecretOfFuzz, .listener = {}, .joiner = read->join.nonce};
  const std::string again = encode(read->join, keys);
  QUIRE_CHECK(again.size() == bytes.size());
  QUIRE_CHECK(again.substr(0, again.size() - 32) == bytes.substr(0, bytes.size() - 32));
  QUIRE_CHECK(read->is_known == (again == bytes));
}

void check_table(std::string_view bytes, int size) {
  const TcpKeys keys = {.secret = kSecretOfFuzz, .listener = {}, .joiner = {}};
  const auto read = decode_table(bytes, size, keys);
  if (!read.ok()) return quire::fuzz::check_error(read.status());
  QUIRE_CHECK(encode(*read, keys) == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::fuzz::Input input(data, size);
  const uint8_t which = input.byte();
  const std::string_view message = input.rest();
  const quire::fuzz::TimePerByte limit(message.size());
  switch (which % 5) {
    case 0: {
      const auto read = decode_greeting(message);
      if (read.ok()) {
        QUIRE_CHECK(encode(*read) == message);
      } else {
        quire::fuzz::check_error(read.status());
      }
      break;
    }
    case 1:
      check_join(message);
      break;
    case 2: {
      const TcpKeys keys = {.secret = kSecretOfFuzz, .listener = {}, .joiner = {}};
      const auto read = decode_welcome(message, keys);
      if (!read.ok()) quire::fuzz::check_error(read.status());
      break;
    }
    case 3:
      check_table(message, which / 5 + 1);
      break;
    default: {
      if (message.size() < kTcpHeadBytes) break;
      const auto read = decode_tcp_head(std::span<const char, kTcpHeadBytes>(message.data(), kTcpHeadBytes));
      if (!read.ok()) {
        quire::fuzz::check_error(read.status());
        break;
      }
      const auto again = encode(*read);
      QUIRE_CHECK(std::string_view(again.data(), again.size()) == message.substr(0, kTcpHeadBytes));
    }
  }
  return 0;
}
