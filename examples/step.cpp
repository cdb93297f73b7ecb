// The loop in your own hands, as with vLLM's LLMEngine: requests come while others are being answered, each step gives
// what is new, and one is aborted on its way.
//   example_step MODEL
#include <cstdio>
#include <string>
#include <vector>

#include "quire/llm.h"

namespace {

struct Arrival {
  int step;  // before which it arrives
  const char* id;
  std::string prompt;
  quire::SamplingParams params;
};

const std::vector<Arrival> kArrivals = {
    {0, "capital", "The capital of France is", {.temperature = 0, .max_tokens = 24}},
    {0, "story", "Once upon a time", {.temperature = 0, .max_tokens = 400}},
    {4, "pair", "The best thing about paper is", {.n = 2, .temperature = 0.8f, .seed = 7, .max_tokens = 12}},
    {9, "sum", "Two plus two is", {.temperature = 0, .max_tokens = 8}},
};

// A text on one line.
std::string quoted(const std::string& text) {
  std::string line = "\"";
  for (const char c : text) line += c == '\n' ? std::string("\\n") : std::string(1, c);
  return line + "\"";
}

void print(const quire::StepOutput& output) {
  for (const quire::CompletionUpdate& answer : output.outputs) {
    std::printf("  %s[%d] %s", output.request_id.c_str(), answer.index, quoted(answer.text).c_str());
    if (answer.finish_reason != quire::FinishReason::kNone) {
      const std::string reason(quire::to_string(answer.finish_reason));
      std::printf(" (%s%s%s)", reason.c_str(), answer.error.ok() ? "" : ": ", answer.error.message().c_str());
    }
    std::printf("\n");
  }
  if (output.finished) {
    std::printf("  %s is finished: %lld prompt tokens, %lld of answers\n", output.request_id.c_str(),
                static_cast<long long>(output.usage.prompt_tokens),
                static_cast<long long>(output.usage.completion_tokens));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: example_step MODEL\n");
    return 2;
  }
  auto made = quire::LLM::create({.model = argv[1]}, quire::Drive::kCaller);
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().message().c_str());
    return 1;
  }
  quire::LLM& llm = **made;

  size_t arrived = 0;
  for (int step = 0; arrived < kArrivals.size() || llm.has_unfinished(); ++step) {
    for (; arrived < kArrivals.size() && kArrivals[arrived].step <= step; ++arrived) {
      const Arrival& next = kArrivals[arrived];
      const quire::Status added = llm.add_request(next.id, next.prompt, next.params);
      if (!added.ok()) std::fprintf(stderr, "%s is refused: %s\n", next.id, added.message().c_str());
    }
    if (step == 12 && llm.abort_request("story")) std::printf("  story is aborted\n");

    auto outputs = llm.step();
    if (!outputs.ok()) {
      std::fprintf(stderr, "%s\n", outputs.status().message().c_str());
      return 1;
    }
    std::printf("step %d\n", step);
    for (const quire::StepOutput& output : *outputs) print(output);
  }
  return 0;
}
