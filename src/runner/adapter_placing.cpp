// Where an adapter's numbers lie, if not where the host has made them. On a device with memory of its own: the image
// that the host has made, with the table by which kernels find its factors, is copied there as it is. Or with other
// processes.
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "runner/adapter.h"

namespace quire::runner {
namespace {

static_assert(std::is_trivially_copyable_v<ops::LowRankFactors> && std::is_trivially_copyable_v<ops::LowRankPart>);

}  // namespace

std::shared_ptr<Adapter> Adapter::elsewhere(const Description& description, Elsewhere there) {
  const auto release = [let_go = std::move(there.let_go)](Adapter* adapter) {
    delete adapter;
    let_go();
  };
  std::shared_ptr<Adapter> adapter(new Adapter, release);
  adapter->take_place_elsewhere_ = std::move(there.take_place);
  adapter->bytes_elsewhere_ = description.bytes;
  adapter->rank_ = description.rank;
  adapter->num_virtual_tokens_ = description.num_virtual_tokens;
  adapter->revision_ = description.revision;
  return adapter;
}

Result<bool> Adapter::take_place_elsewhere() {
  QUIRE_CHECK(is_elsewhere());
  QUIRE_ASSIGN_OR_RETURN(has_place_elsewhere_, take_place_elsewhere_());
  return has_place_elsewhere_;
}

int64_t Adapter::table_bytes() const {
  int64_t bytes = first_entries_.back() * int64_t{sizeof(ops::LowRankFactors)};
  for (const std::vector<Factors>& experts : layers_) {
    for (const Factors& own : experts) {
      bytes +=
          std::ssize(own.parts) * int64_t{sizeof(ops::LowRankPart)} + std::ssize(own.only) * int64_t{sizeof(int32_t)};
    }
  }
  return bytes;
}

bool Adapter::take_place(Allocator& allocator) {
  QUIRE_CHECK(!has_place() && !image_.empty());
  memory_ = Buffer(allocator, image_.size());
  return has_place();
}

Status Adapter::upload(ops::Backend& backend) {
  QUIRE_CHECK(has_place() && memory_.bytes() == image_.size());
  write_table();
  QUIRE_RETURN_IF_ERROR(backend.upload_on_side_stream(memory_.data(), image_.data(), image_.size()));
  image_ = {};
  return {};
}

// Pointers into the image become those of the device, and the table says so there.
void Adapter::write_table() {
  const uint8_t* from = image_.data();
  const auto* to = memory_.as<uint8_t>();
  const auto move = [&]<typename T>(const T*& pointer) {
    if (pointer == nullptr) return;
    pointer = reinterpret_cast<const T*>(to + (reinterpret_cast<const uint8_t*>(pointer) - from));
  };
  const auto move_any = [&](const void*& pointer) {
    if (pointer != nullptr) pointer = to + (static_cast<const uint8_t*>(pointer) - from);
  };
  table_ = reinterpret_cast<const ops::LowRankFactors*>(to + table_begin_);
  size_t at = table_begin_ + static_cast<size_t>(first_entries_.back()) * sizeof(ops::LowRankFactors);
  // Behind the entries. Returns where it will be.
  const auto append = [&]<typename T>(const std::vector<T>& all) {
    const size_t bytes = all.size() * sizeof(T);
    if (bytes != 0) std::memcpy(image_.data() + at, all.data(), bytes);
    const auto* placed = reinterpret_cast<const T*>(to + at);
    at += bytes;
    return std::span<const T>(placed, all.size());
  };
  const auto write_entry = [&](int32_t entry, const ops::LowRankFactors& factors) {
    std::memcpy(image_.data() + table_begin_ + static_cast<size_t>(entry) * sizeof(factors), &factors, sizeof(factors));
  };
  // Parts before ids: these are of four bytes.
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    for (size_t expert = 0; expert < layers_[layer].size(); ++expert) {
      Factors& own = layers_[layer][expert];
      move_any(own.factors.down);
      for (ops::LowRankPart& part : own.parts) {
        move_any(part.up);
        move(part.gain);
        move(part.shift);
      }
      ops::LowRankFactors entry = own.factors;
      entry.parts = append(own.parts);
      write_entry(first_entries_[layer] + static_cast<int32_t>(expert), entry);
    }
  }
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    for (size_t expert = 0; expert < layers_[layer].size(); ++expert) {
      const Factors& own = layers_[layer][expert];
      if (own.only.empty()) continue;
      ops::LowRankFactors entry = own.factors;
      QUIRE_CHECK(own.parts.empty());
      entry.only = append(own.only);
      write_entry(first_entries_[layer] + static_cast<int32_t>(expert), entry);
    }
  }
  move_any(prompt_.down);
  if (prompt_.down != nullptr) write_entry(first_entries_[static_cast<size_t>(prompt_layer_)], prompt_);
  for (const float*& keys : keys_) move(keys);
  for (const float*& values : values_) move(values);
}

}  // namespace quire::runner
