// Several prompts in one batch, then one request with a callback for each token.
//   example_generate MODEL
#include <cstdio>
#include <string>

#include "quire/llm.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: example_generate MODEL\n");
    return 2;
  }
  auto llm = quire::LLM::create({.model = argv[1]});
  if (!llm.ok()) {
    std::fprintf(stderr, "%s\n", llm.status().message().c_str());
    return 1;
  }

  const std::vector<quire::Prompt> prompts = {"The capital of France is", "Once upon a time", "Two plus two is"};
  auto outputs = (*llm)->generate(prompts, {.temperature = 0, .max_tokens = 24});
  if (!outputs.ok()) {
    std::fprintf(stderr, "%s\n", outputs.status().message().c_str());
    return 1;
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::printf("%s|%s\n", std::get<std::string>(prompts[i]).c_str(), (*outputs)[i].text.c_str());
  }

  auto generation = (*llm)->generate_async("A haiku about paper:\n", {.temperature = 0.7f, .seed = 1, .max_tokens = 48},
                                           [](const quire::RequestUpdate& update) {
                                             std::fputs(update.text.c_str(), stdout);
                                             std::fflush(stdout);
                                           });
  if (!generation.ok()) return 1;
  (*generation)->wait();
  std::printf("\n");
  return 0;
}
