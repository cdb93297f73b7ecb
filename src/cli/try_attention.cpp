// quire try-attention: the process of cli/attention_trial.h. --help does not list it.
#include <unistd.h>

#include <memory>

#include "cli/commands.h"
#include "cli/options.h"
#ifdef QUIRE_HAS_CUDA
#include "ops/cuda/cuda_backend.h"
#endif

namespace quire::cli {
namespace {

Status try_card([[maybe_unused]] int card) {
#ifdef QUIRE_HAS_CUDA
  constexpr unsigned kMostSeconds = 90;  // whoever waits for it does not so long; nobody may
  alarm(kMostSeconds);
  return ops::try_attention(card);
#else
  return unavailable("this quire was built without CUDA");
#endif
}

}  // namespace

void add_try_attention_command(CLI::App& program, int& exit_code) {
  auto card = std::make_shared<int>(0);
  CLI::App* command = program.add_subcommand("try-attention", "Whether a card's kernels of attention agree")->group("");
  command->add_option("--card", *card);
  command->callback([card, &exit_code] { exit_code = exit_code_of(try_card(*card)); });
}

}  // namespace quire::cli
