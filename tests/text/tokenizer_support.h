// Tokenizers and golden lines of tests/data/tokenizers.
#pragma once

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "text/tokenizer.h"

namespace quire::text::testing {

inline std::string read_data(const std::string& name) {
  std::ifstream file(std::string(QUIRE_TEST_DATA) + "/tokenizers/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

inline std::vector<boost::json::value> read_lines(const std::string& name) {
  std::vector<boost::json::value> lines;
  std::istringstream stream(read_data(name));
  for (std::string line; std::getline(stream, line);) lines.push_back(boost::json::parse(line));
  EXPECT_FALSE(lines.empty()) << name;
  return lines;
}

inline std::vector<TokenId> ids_of(const boost::json::value& value) {
  return boost::json::value_to<std::vector<TokenId>>(value);
}

inline std::unique_ptr<Tokenizer> load(const std::string& json) {
  auto made = Tokenizer::from_json(json);
  if (!made.ok()) {
    ADD_FAILURE() << made.status().message();
    return nullptr;
  }
  return std::move(made).value();
}

// small_bpe.json: all bytes, 300 merges, "<|endoftext|>" as special token 0, pre-tokenizer ByteLevel.
inline boost::json::object small_bpe() {
  return boost::json::parse(read_data("small_bpe.json")).as_object();
}

inline std::unique_ptr<Tokenizer> load(const boost::json::object& json) {
  return load(boost::json::serialize(json));
}

}  // namespace quire::text::testing
