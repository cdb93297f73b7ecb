// What an engine's process and its workers say to each other besides plans: orders, reports and greetings, those of
// adapters, and the ring that messages come through, whose every byte the other side may have written. The first byte
// chooses.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "comm/message_ring.h"
#include "runner/worker_messages.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr int64_t kCapacity = 256;

struct alignas(64) RingMemory {
  uint8_t bytes[sizeof(quire::comm::RingHeader) + kCapacity] = {};
};

void read_ring(std::string_view input) {
  const auto memory = std::make_unique<RingMemory>();
  auto& header = *reinterpret_cast<quire::comm::RingHeader*>(memory->bytes);
  uint64_t places[2] = {};
  std::memcpy(places, input.data(), std::min(input.size(), sizeof(places)));
  header.head = places[0];
  header.tail = places[1];
  input.remove_prefix(std::min(input.size(), sizeof(places)));
  std::memcpy(memory->bytes + sizeof(header), input.data(), std::min<size_t>(input.size(), kCapacity));
  quire::comm::MessageRing ring(memory->bytes, kCapacity);
  // Ends: each message takes bytes, and nobody waits for more.
  while (ring.read([] { return false; }).ok()) {
  }
  const quire::Status written = ring.write("an answer", [] { return false; });
  if (!written.ok()) quire::fuzz::check_error(written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  fuzz::Input input(data, size);
  const uint8_t which = input.byte();
  const std::string_view message = input.rest();
  const fuzz::TimePerByte limit(message.size());
  if (which % 6 == 0) {
    const auto order = runner::decode_order(message);
    if (!order.ok()) return fuzz::check_error(order.status()), 0;
    // A device that nobody has chosen is the CPU where it is read.
    const std::string once = runner::encode_order(*order);
    QUIRE_CHECK(runner::encode_order(*runner::decode_order(once)) == once);
  } else if (which % 6 == 1) {
    const auto report = runner::decode_report(message);
    if (!report.ok()) return fuzz::check_error(report.status()), 0;
    QUIRE_CHECK(runner::encode(*report) == message);
  } else if (which % 6 == 2) {
    read_ring(message);
  } else if (which % 6 == 4) {
    const auto order = runner::decode_adapter_order(message);
    if (!order.ok()) return fuzz::check_error(order.status()), 0;
    QUIRE_CHECK(runner::encode(*order) == message);
  } else if (which % 6 == 5) {
    const auto report = runner::decode_adapter_report(message);
    if (!report.ok()) return fuzz::check_error(report.status()), 0;
    QUIRE_CHECK(runner::encode(*report) == message);
  } else {
    const auto hello = runner::decode_hello(message);
    if (!hello.ok()) return fuzz::check_error(hello.status()), 0;
    QUIRE_CHECK(runner::encode(*hello) == message);
  }
  return 0;
}
