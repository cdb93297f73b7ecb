// Names that a table of Boost.JSON's objects puts into one bucket, as somebody would choose them who wants it slow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <boost/json.hpp>

namespace quire {

// A table's salt is its address, whose last byte alone decides, for names of one length, which of them meet in a table
// of 2^n buckets. `salt`: that byte. REQUIRES: num_buckets is a power of two.
inline std::vector<std::string> colliding_names(size_t count, size_t num_buckets, size_t salt = 0x10) {
  std::vector<std::string> names;
  std::string name = "aaaaaaaa";
  while (names.size() < count) {
    if (boost::json::detail::digest(name.begin(), name.end(), salt) % num_buckets == 0) names.push_back(name);
    for (char& letter : name) {
      if (++letter <= 'z') break;
      letter = 'a';
    }
  }
  return names;
}

inline std::string object_of(const std::vector<std::string>& names) {
  std::string text = "{";
  for (const std::string& name : names) text += (text.size() > 1 ? ",\"" : "\"") + name + "\":0";
  return text + "}";
}

}  // namespace quire
