// A trie over bytes as a double array (Aoe, 1989): one array access a byte, whatever the alphabet. Vocabularies, user
// defined symbols and anything else whose longest or every prefix is asked for at each position of a text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace quire::text {

class ByteTrie {
 public:
  struct Entry {
    std::string_view key;
    int32_t value = 0;  // not negative
  };
  static constexpr int32_t kNoValue = -1;

  ByteTrie() : ByteTrie(std::vector<Entry>()) {}
  // Empty keys are left out; of equal keys the first given stays. Time and memory are linear in the keys' bytes.
  explicit ByteTrie(std::vector<Entry> entries);

  static constexpr uint32_t kRoot = 0;
  // Moves `node` along `byte`; false (and `node` as it was) when no key goes on so.
  bool step(uint32_t& node, char byte) const {
    const uint32_t child = units_[node].base ^ static_cast<unsigned char>(byte);
    if (units_[child].parent != node) return false;
    node = child;
    return true;
  }
  // Of the key that ends at `node`; kNoValue where none does.
  int32_t value(uint32_t node) const { return units_[node].value; }
  // Of exactly this key.
  int32_t find(std::string_view key) const;
  // The longest key that `text` begins with: its bytes (0: none) and value.
  struct Match {
    size_t length = 0;
    int32_t value = kNoValue;
  };
  Match longest(std::string_view text) const;
  bool empty() const { return empty_; }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Unit {
    uint32_t base = 0;        // children lie at base ^ byte, in the block of 256 units that holds base
    uint32_t parent = kFree;  // kFree: nobody's
    int32_t value = kNoValue;
  };
  void add_block();
  void take(uint32_t unit, uint32_t parent);
  uint32_t base_for(const std::vector<unsigned char>& labels);

  std::vector<Unit> units_;
  std::vector<uint32_t> next_free_, previous_free_;  // a ring of the free units, only while building
  uint32_t first_free_ = kFree;
  bool empty_ = true;
};

}  // namespace quire::text
