#include "cli/llama_cpp_arguments.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace quire::cli {
namespace {

constexpr LlamaCppArgument kTheirs[] = {
    {"-m", "the model's path without a flag, or --model"},
    {"-hf -hfr --hf-repo -hff --hf-file", "the model's name without a flag: ORG/NAME, ORG/NAME:Q4_K_M"},
    {"-c --ctx-size", "--max-model-len"},
    {"-n --predict --n-predict", "--max-tokens, or max_tokens of a request"},
    {"-ngl --gpu-layers --n-gpu-layers", "--device cuda, which computes all layers on the card"},
    {"-dev", "--device"},
    {"-sm --split-mode -ts --tensor-split", "--tensor-parallel-size"},
    {"-t -tb --threads-batch", "--threads"},
    {"-np --parallel", "--max-num-seqs"},
    {"-b --batch-size -ub --ubatch-size", "--max-num-batched-tokens"},
    {"-ctk --cache-type-k -ctv --cache-type-v", "--kv-cache-dtype"},
    {"-fa --flash-attn", "nothing, or --attention-backend"},
    {"-cb --cont-batching --jinja --slots --metrics", "nothing: that is how it works"},
    {"--mlock --no-mmap", "nothing: weights are packed into memory of their own"},
    {"--numa", "--numa-bind"},
    {"--temp", "--temperature"},
    {"-s", "--seed"},
    {"--repeat-penalty", "--repetition-penalty"},
    {"-sys --system-prompt", "--system"},
    {"-cnv --conversation", "quire chat"},
    {"-f --file", "--prompt - with the file as standard input"},
    {"-a --alias", "--served-model-name"},
    {"-md --model-draft", "--speculative-model"},
    {"--draft --draft-max --draft-n", "--num-speculative-tokens"},
    {"-lcs --lookup-cache-static -lcd --lookup-cache-dynamic", "--speculative-config with method ngram or suffix"},
    {"--embedding --embeddings", "--runner pooling"},
    {"--rerank --reranking", "--runner pooling, or nothing where the model was made for that"},
    {"-j --json-schema --grammar --grammar-file", "response_format or structured_outputs of a request"},
};

}  // namespace

std::span<const LlamaCppArgument> llama_cpp_arguments() {
  return kTheirs;
}

std::string llama_cpp_hints(std::span<const std::string> arguments) {
  std::string lines;
  for (const std::string& given : arguments) {
    const std::string_view name = std::string_view(given).substr(0, given.find('='));
    const auto has_name = [&](const LlamaCppArgument& argument) {
      const std::string names = fmt::format(" {} ", argument.names);
      return name.starts_with('-') && names.find(fmt::format(" {} ", name)) != std::string::npos;
    };
    const auto found = std::ranges::find_if(kTheirs, has_name);
    if (found != std::end(kTheirs)) lines += fmt::format("{} is llama.cpp's; here: {}\n", name, found->here);
  }
  return lines;
}

}  // namespace quire::cli
