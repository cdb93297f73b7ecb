// Schemas put together at random of allOf, anyOf, oneOf, not, if and $ref: what their grammar takes must be exactly
// what satisfies them by JSON schema's rules, which the check of a finished answer follows on its own.
#include <random>
#include <string>
#include <vector>

#include "grammar/random_walk.h"
#include "grammar/schema.h"
#include "tests/grammar/grammar_support.h"

namespace quire::grammar {
namespace {

namespace json = boost::json;
using namespace testing;  // NOLINT

class RandomSchemas {
 public:
  explicit RandomSchemas(unsigned seed) : random_(seed) {}

  // Of objects with the properties a and b, and no others.
  json::value whole() {
    json::object schema = combined(2);
    schema["type"] = "object";
    json::object properties;
    for (const char* name : {"a", "b"}) properties[name] = base_value();
    if (draw(4) == 0) {
      schema["allOf"] = json::array{json::object{{"properties", properties}, {"additionalProperties", false}}};
    } else {
      schema["properties"] = properties;
      schema["additionalProperties"] = false;
    }
    schema["$defs"] = json::object{{"d", part(1)}, {"v", value(0)}};
    return schema;
  }

  // Of objects with the properties that their parts evaluate, and no others.
  json::value evaluated() {
    json::object schema = combined(2);
    schema["type"] = "object";
    if (draw(2) == 0) schema["properties"] = json::object{{std::string_view(name().as_string()), base_value()}};
    if (draw(3) == 0) {
      schema["allOf"] = json::array{json::object{{"properties", json::object{{"a", true}}}}, closed_part()};
    }
    if (draw(4) > 0) schema["unevaluatedProperties"] = false;
    schema["$defs"] = json::object{{"d", part(1)}, {"v", value(0)}};
    return schema;
  }

  // Of arrays with the items that their parts evaluate, and what may be beside them.
  json::value evaluated_items() {
    json::object schema = items_part(2);
    schema["type"] = "array";
    if (draw(4) > 0) schema["unevaluatedItems"] = draw(2) == 0 ? json::value(false) : value(0);
    schema["$defs"] = json::object{{"d", items_part(1)}, {"v", value(0)}};
    return schema;
  }

 private:
  json::object items_part(int depth) {
    json::object out;
    if (draw(2) == 0) {
      json::array prefix;
      for (size_t i = draw(3); i-- > 0;) prefix.push_back(value(0));
      out["prefixItems"] = std::move(prefix);
    }
    if (draw(4) == 0) out["items"] = value(0);
    if (draw(4) == 0) out[draw(2) == 0 ? "minItems" : "maxItems"] = draw(3);
    if (depth < 2 && draw(4) == 0) out["unevaluatedItems"] = draw(2) == 0 ? json::value(false) : value(0);
    if (depth == 0) return out;
    const size_t kind = draw(5);
    if (kind < 3) {
      constexpr const char* kKinds[] = {"allOf", "anyOf", "oneOf"};
      out[kKinds[kind]] = json::array{items_part(depth - 1), items_part(depth - 1)};
    } else if (kind == 3) {
      out["if"] = json::object{{"minItems", 2}};
      out["then"] = items_part(depth - 1);
      out["else"] = items_part(depth - 1);
    } else if (depth > 1) {
      out["$ref"] = "#/$defs/d";
    }
    return out;
  }

  json::object closed_part() {
    json::object out = part(1);
    if (draw(2) == 0) out["unevaluatedProperties"] = false;
    return out;
  }

  size_t draw(size_t below) { return random_() % below; }

  json::value any_value() {
    const json::value kValues[] = {nullptr, 1, 5, "x", ""};
    return kValues[draw(std::size(kValues))];
  }
  json::array values() {
    json::array out;
    for (size_t i = 0; i < 1 + draw(3); ++i) out.push_back(any_value());
    return out;
  }
  json::value name() { return draw(2) == 0 ? "a" : "b"; }

  json::value base_value() {
    switch (draw(3)) {
      case 0:
        return {{"enum", {nullptr, 1, 5, "x", ""}}};
      case 1:
        return json::object{{"type", {"null", "integer", "string"}}};
      default:
        return json::object{{"anyOf", {json::object{{"type", "integer"}}, json::object{{"type", {"null", "string"}}}}}};
    }
  }

  json::value value(int depth) {
    switch (draw(depth > 0 ? 10 : 6)) {
      case 0:
        return json::object{{"const", any_value()}};
      case 1:
        return json::object{{"enum", values()}};
      case 2:
        return json::object{{"type", draw(2) == 0 ? "integer" : "string"}};
      case 3:
        return json::object{{"type", {"null", "string"}}};
      case 4:
        return json::object{{"minimum", 3}};
      case 5:
        return json::object{{"minLength", 1}};
      case 6:
        return json::object{{"not", value(depth - 1)}};
      case 7:
        return json::object{{"anyOf", json::array{value(depth - 1), value(depth - 1)}}};
      case 8:
        return json::object{{"$ref", "#/$defs/v"}};
      default:
        return draw(2) == 0 ? json::value(true) : json::value(json::object{{"oneOf", json::array{value(0), value(0)}}});
    }
  }

  json::object part(int depth) {
    switch (draw(depth > 0 ? 9 : 5)) {
      case 0:
        return {{"required", json::array{name()}}};
      case 1:
        return {{"required", {"a", "b"}}};
      case 2: {
        json::object out{{"properties", json::object{{std::string_view(name().as_string()), value(depth)}}}};
        if (draw(2) == 0) out["required"] = json::array{name()};
        return out;
      }
      case 3:
        return {{draw(2) == 0 ? "minProperties" : "maxProperties", 1}};
      case 4:
        if (draw(4) > 0) return {{"properties", json::object{{"a", value(0)}}}};
        return {{"enum", json::array{json::object{}, json::object{{"a", 1}}, json::object{{"a", 1}, {"b", "x"}}}}};
      default:
        return combined(depth);
    }
  }

  json::object combined(int depth) {
    json::object out;
    switch (draw(6)) {
      case 0:
        out["allOf"] = json::array{part(depth - 1), part(depth - 1)};
        break;
      case 1:
        out["anyOf"] = json::array{part(depth - 1), part(depth - 1)};
        break;
      case 2:
        out["oneOf"] = json::array{part(depth - 1), part(depth - 1)};
        break;
      case 3:
        out["not"] = part(depth - 1);
        break;
      case 4:
        out["if"] = part(depth - 1);
        if (draw(3) > 0) out["then"] = part(depth - 1);
        if (draw(2) > 0) out["else"] = part(depth - 1);
        break;
      default:
        if (depth > 1) out["$ref"] = "#/$defs/d";
        out["required"] = json::array{name()};
    }
    return out;
  }

  std::mt19937 random_;
};

struct Instance {
  std::string text;
  std::string turned;  // its properties the other way round: theirs is the order in which parts declare them
};

// Every object with a and b out of these values, as the grammar writes them.
std::vector<Instance> instances() {
  const std::vector<std::string> values = {"", "null", "1", "5", "\"x\"", "\"\""};
  std::vector<Instance> out;
  for (const std::string& a : values) {
    for (const std::string& b : values) {
      const std::string first = a.empty() ? "" : "\"a\":" + a;
      const std::string second = b.empty() ? "" : "\"b\":" + b;
      const std::string comma = a.empty() || b.empty() ? "" : ",";
      out.push_back({"{" + first + comma + second + "}", "{" + second + comma + first + "}"});
    }
  }
  return out;
}

TEST(CombinedSchemas, TheGrammarTakesExactlyWhatSatisfiesThem) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  RandomSchemas schemas(seed);
  int made = 0;
  int walked = 0;
  constexpr int kRounds = 300;
  for (int i = 0; i < kRounds; ++i) {
    const std::string schema = json::serialize(schemas.whole());
    SCOPED_TRACE(schema);
    const auto constraint = compiled(schema_output(schema));
    if (!constraint.ok()) {
      EXPECT_EQ(constraint.status().code(), StatusCode::kInvalidArgument) << constraint.status().message();
      EXPECT_NE(constraint.status().message().find("in the schema at #"), std::string::npos)
          << constraint.status().message();
      continue;
    }
    ++made;
    for (const auto& [text, turned] : instances()) {
      EXPECT_EQ(accepts(**constraint, text) || accepts(**constraint, turned), (*constraint)->check(text).ok()) << text;
    }
    const auto answer = random_walk(**constraint, *byte_level().vocabulary, *byte_level().tokenizer, {.seed = seed});
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    if (!*answer) continue;
    ++walked;
    EXPECT_TRUE((*constraint)->check(**answer).ok()) << **answer;
  }
  EXPECT_GT(made, kRounds / 2);
  EXPECT_GT(walked, kRounds / 4);
}

// Ours are fewer, as each alternative evaluates its own.
TEST(CombinedSchemas, TheGrammarTakesNoPropertyThatNoPartEvaluates) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  RandomSchemas schemas(seed);
  int made = 0;
  int taken = 0;
  constexpr int kRounds = 300;
  for (int i = 0; i < kRounds; ++i) {
    const std::string schema = json::serialize(schemas.evaluated());
    SCOPED_TRACE(schema);
    const auto constraint = compiled(schema_output(schema));
    if (!constraint.ok()) continue;
    ++made;
    for (const auto& [text, turned] : instances()) {
      if (!accepts(**constraint, text) && !accepts(**constraint, turned)) continue;
      ++taken;
      const Status status = (*constraint)->check(text);
      EXPECT_TRUE(status.ok()) << text << ": " << status.message();
    }
  }
  EXPECT_GT(made, kRounds / 4);
  EXPECT_GT(taken, kRounds);
}

TEST(CombinedSchemas, TheGrammarTakesNoItemThatNoPartEvaluates) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  RandomSchemas schemas(seed);
  std::vector<std::string> arrays = {"[]"};
  for (size_t i = 0; i < arrays.size() && arrays[i].size() < 12; ++i) {
    const std::string begun = arrays[i].substr(0, arrays[i].size() - 1);
    for (const char* item : {"null", "5", "\"x\""}) arrays.push_back(begun + (i == 0 ? "" : ", ") + item + "]");
  }
  int made = 0;
  int taken = 0;
  constexpr int kRounds = 300;
  for (int i = 0; i < kRounds; ++i) {
    const std::string schema = json::serialize(schemas.evaluated_items());
    SCOPED_TRACE(schema);
    const auto constraint = compiled(schema_output(schema));
    if (!constraint.ok()) continue;
    ++made;
    for (const std::string& text : arrays) {
      if (!accepts(**constraint, text)) continue;
      ++taken;
      const Status status = (*constraint)->check(text);
      EXPECT_TRUE(status.ok()) << text << ": " << status.message();
    }
  }
  EXPECT_GT(made, kRounds / 4);
  EXPECT_GT(taken, kRounds / 4);
}

}  // namespace
}  // namespace quire::grammar
