// Messages between an engine and its workers: what can be read is written again as it was. The first byte chooses which
// kind is expected.
#include "runner/plan_codec.h"
#include "tests/fuzz/fuzz.h"

namespace {

// Lists of ids are sets where they are read, and parameters are shared: what is written once is read as itself from
// then on.
template <typename Decode>
void check(std::string_view message, const Decode& decode) {
  const auto read = decode(message);
  if (!read.ok()) return quire::fuzz::check_error(read.status());
  const std::string once = quire::runner::encode(*read);
  QUIRE_CHECK(quire::runner::encode(*decode(once)) == once);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  fuzz::Input input(data, size);
  const uint8_t which = input.byte();
  const std::string_view message = input.rest();
  const fuzz::TimePerByte limit(message.size());
  switch (which % 6) {
    case 0:
      check(message, runner::decode_plan);
      break;
    case 1:
      check(message, runner::decode_step);
      break;
    case 2:
      check(message, runner::decode_question);
      break;
    case 3:
      check(message, runner::decode_answer);
      break;
    case 4:
      check(message, runner::decode_orders);
      break;
    default:
      check(message, runner::decode_reports);
      break;
  }
  return 0;
}
