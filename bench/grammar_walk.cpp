// Random answers of JSON schemas as JSON lines, for a validator that is not ours: scripts/schema_walks.py.
// grammar_walk MODEL END_TOKEN WALKS < schemas, one a line > {"texts": [...], "unended": n, "refused": why,
// "failed": why, "compile_us": t, "mask_us": t, "largest_us": t}
// MODEL is a tokenizer.json or a GGUF file. Times are the processor's. mask_us: a token's mask and acceptance, the mean
// of a text, the largest of the first five texts; largest_us: the longest that one token took when its turn came a
// second time.
#include <algorithm>

#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include <boost/json.hpp>

#include "base/thread_clock.h"
#include "checkpoint/checkpoint.h"
#include "grammar/compiler.h"
#include "grammar/random_walk.h"
#include "runner/text_files.h"

namespace {

namespace json = boost::json;
using quire::grammar::GrammarVocabulary;

// In microseconds.
double processor_time() {
  return quire::thread_seconds() * 1e6;
}

struct MaskTime {
  double mean = 0;
  double largest = 0;
};

// Of a state's masks along a text, each in its turn.
MaskTime mask_time(const quire::TokenConstraint& constraint, const GrammarVocabulary& vocabulary,
                   const quire::text::Tokenizer& tokenizer, const std::string& text) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocabulary.vocab_size()) + 31) / 32);
  const auto state = constraint.start();
  MaskTime time;
  int64_t count = 0;
  for (const quire::TokenId id : tokenizer.encode(text, false)) {
    const double begin = processor_time();
    state->allowed(mask);
    const bool accepted = state->accept(id);
    const double one = processor_time() - begin;
    time.mean += one;
    time.largest = std::max(time.largest, one);
    ++count;
    if (!accepted) break;  // it may be spelled by other tokens than those that were drawn
  }
  if (count > 0) time.mean /= static_cast<double>(count);
  return time;
}

json::object walk(const std::string& line, const std::shared_ptr<const GrammarVocabulary>& vocabulary,
                  const quire::text::Tokenizer& tokenizer, int walks) {
  json::object out;
  const quire::StructuredOutput output{.kind = quire::StructuredOutput::Kind::kJsonSchema, .text = line};
  const double begin = processor_time();
  auto compiled = quire::grammar::compile_constraint(output, {}, vocabulary);
  out["compile_us"] = processor_time() - begin;
  if (!compiled.ok()) {
    out["refused"] = compiled.status().message();
    return out;
  }
  json::array texts;
  int64_t unended = 0;
  MaskTime masks;
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
    if (seed < 5) {
      mask_time(*compiled->constraint, *vocabulary, tokenizer, **text);
      const MaskTime time = mask_time(*compiled->constraint, *vocabulary, tokenizer, **text);
      masks = {std::max(masks.mean, time.mean), std::max(masks.largest, time.largest)};
    }
    texts.emplace_back(**text);
  }
  out["texts"] = std::move(texts);
  out["unended"] = unended;
  out["mask_us"] = masks.mean;
  out["largest_us"] = masks.largest;
  return out;
}

quire::Result<std::unique_ptr<quire::text::Tokenizer>> load(const std::string& path) {
  if (path.ends_with(".json")) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return quire::text::Tokenizer::from_json(text);
  }
  QUIRE_ASSIGN_OR_RETURN(const auto checkpoint, quire::checkpoint::Checkpoint::open(path));
  quire::EngineConfig config;
  config.model = path;
  QUIRE_ASSIGN_OR_RETURN(const quire::TextSource source, quire::runner::read_text_source(config, *checkpoint));
  return quire::text::Tokenizer::from_source(source);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "grammar_walk MODEL END_TOKEN WALKS < schemas\n";
    return 2;
  }
  auto tokenizer = load(argv[1]);
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
