// What instances say to each other when one fetches blocks from the other, and what requests say of it: what can be
// read is written again as it was, and takes no more memory than its bytes. The first byte chooses which kind is
// expected.
#include "net/kv_protocol.h"

#include <boost/json.hpp>

#include "base/parse_json.h"
#include "server/kv_transfer.h"
#include "tests/fuzz/fuzz.h"

namespace {

template <typename Decode>
void check_body(std::string_view body, const Decode& decode) {
  const auto read = decode(body);
  if (!read.ok()) return quire::fuzz::check_error(read.status());
  QUIRE_CHECK(quire::net::encode(*read) == body);
}

void check_params(std::string_view text) {
  boost::system::error_code error;
  const boost::json::value body = quire::parse_json(text, error);
  if (error || !body.is_object()) return;
  quire::server::JsonFields fields(body.get_object());
  const auto params = quire::server::read_kv_transfer_params(fields, {.sends = true, .receives = true}, 64);
  if (!fields.status().ok()) return quire::fuzz::check_error(fields.status());
  QUIRE_CHECK(!params.do_remote_prefill || (params.num_blocks >= 1 && params.num_blocks <= 64 && params.port != 0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  fuzz::Input input(data, size);
  const uint8_t which = input.byte();
  const std::string_view message = input.rest();
  const fuzz::TimePerByte limit(message.size());
  switch (which % 5) {
    case 0: {
      const auto head = net::decode_head(message);
      if (!head.ok()) {
        fuzz::check_error(head.status());
      } else {
        QUIRE_CHECK(net::encode_head(*head) == message);
      }
      break;
    }
    case 1:
      check_body(message, net::decode_ask);
      break;
    case 2:
      check_body(message, net::decode_offer);
      break;
    case 3:
      check_params(message);
      break;
    default: {
      const auto config = server::KvTransferConfig::parse(std::string(message), "");
      if (!config.ok()) fuzz::check_error(config.status());
      break;
    }
  }
  return 0;
}
