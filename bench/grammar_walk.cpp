// Random answers of JSON schemas as JSON lines, for a validator that is not ours: scripts/schema_walks.py.
// grammar_walk TOKENIZER.JSON END_TOKEN WALKS < schemas, one a line > {"schema": line, "texts": [...], "unended": n,
// "refused": why, "failed": why, "compile_us": t, "mask_us": t}
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include <boost/json.hpp>

#include "grammar/compiler.h"
#include "grammar/random_walk.h"

namespace {

namespace json = boost::json;
using quire::grammar::GrammarVocabulary;
using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

// Of a state's masks along a text, each in its turn.
double mask_time(const quire::TokenConstraint& constraint, const GrammarVocabulary& vocabulary,
                 const quire::text::Tokenizer& tokenizer, const std::string& text) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocabulary.vocab_size()) + 31) / 32);
  const auto state = constraint.start();
  Clock::duration time{};
  int64_t count = 0;
  for (const quire::TokenId id : tokenizer.encode(text, false)) {
    const auto begin = Clock::now();
    state->allowed(mask);
    const bool accepted = state->accept(id);
    time += Clock::now() - begin;
    ++count;
    if (!accepted) break;  // it may be spelled by other tokens than those that were drawn
  }
  return count == 0 ? 0 : microseconds(time) / static_cast<double>(count);
}

json::object walk(const std::string& line, const std::shared_ptr<const GrammarVocabulary>& vocabulary,
                  const quire::text::Tokenizer& tokenizer, int walks) {
  json::object out;
  const quire::StructuredOutput form{.kind = quire::StructuredOutput::Kind::kJsonSchema, .text = line};
  const auto begin = Clock::now();
  auto compiled = quire::grammar::compile_constraint(form, {}, vocabulary);
  out["compile_us"] = microseconds(Clock::now() - begin);
  if (!compiled.ok()) {
    out["refused"] = compiled.status().message();
    return out;
  }
  json::array texts;
  int64_t unended = 0;
  double masks = 0;
  for (int seed = 0; seed < walks; ++seed) {
    auto text = quire::grammar::random_walk(*compiled->constraint, *vocabulary, tokenizer,
                                            {.seed = static_cast<uint64_t>(seed)});
    if (!text.ok()) {
      out["failed"] = text.status().message();
      return out;
    }
    if (!*text) {
      ++unended;
      continue;
    }
    if (const quire::Status status = compiled->constraint->check(**text); !status.ok()) {
      out["failed"] = status.message() + " in " + **text;
    }
    if (seed < 5) masks = std::max(masks, mask_time(*compiled->constraint, *vocabulary, tokenizer, **text));
    texts.emplace_back(**text);
  }
  out["texts"] = std::move(texts);
  out["unended"] = unended;
  out["mask_us"] = masks;
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "grammar_walk TOKENIZER.JSON END_TOKEN WALKS < schemas\n";
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  auto tokenizer = quire::text::Tokenizer::from_json(text);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << '\n';
    return 1;
  }
  const auto end = (*tokenizer)->token_to_id(argv[2]);
  if (!end) {
    std::cerr << "the tokenizer has no token " << argv[2] << '\n';
    return 1;
  }
  const auto vocabulary =
      std::make_shared<const GrammarVocabulary>(**tokenizer, (*tokenizer)->vocab_size(), std::vector{*end}, false);
  for (std::string line; std::getline(std::cin, line);) {
    json::object out = walk(line, vocabulary, **tokenizer, std::stoi(argv[3]));
    std::cout << json::serialize(out) << std::endl;
  }
  return 0;
}
