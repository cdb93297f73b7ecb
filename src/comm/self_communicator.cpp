#include <algorithm>

#include "base/check.h"
#include "comm/communicator.h"

namespace quire::comm {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce(std::span<float> /*values*/) override {}
  void reduce_scatter(std::span<const float> values, std::span<float> sum) override {
    QUIRE_CHECK(values.size() == sum.size());
    std::ranges::copy(values, sum.begin());
  }
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    QUIRE_CHECK(own.size() == all.size());
    std::ranges::copy(own, all.begin());
  }
  void gather_columns(const MatrixView& /*matrix*/, std::span<const ColumnRange> columns, int /*root*/) override {
    QUIRE_CHECK(columns.size() == 1);
  }
  void broadcast(std::span<std::byte> /*bytes*/, int root) override { QUIRE_CHECK(root == 0); }
  void send(std::span<const std::byte> /*bytes*/, int /*to*/) override {
    QUIRE_CHECK_MSG(false, "a group of one has nobody to send to");
  }
  void receive(std::span<std::byte> /*bytes*/, int /*from*/) override {
    QUIRE_CHECK_MSG(false, "a group of one has nobody to receive from");
  }
  void barrier() override {}
  Status status() const override { return {}; }
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace quire::comm
