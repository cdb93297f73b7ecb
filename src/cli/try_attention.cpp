// quire try-attention: the process of cli/attention_trial.h. --help does not list it.
#include <memory>

#include "cli/attention_trial.h"
#include "cli/choice_option.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace quire::cli {

void add_try_attention_command(CLI::App& program, int& exit_code) {
  auto device = std::make_shared<DeviceChoice>(DeviceChoice::cuda());
  CLI::App* command = program.add_subcommand("try-attention", "Whether a card's kernels of attention agree")->group("");
  add_choice(*command, "--device", *device, "cuda or cuda:N")->capture_default_str();
  command->callback([device, &exit_code] { exit_code = exit_code_of(try_attention(*device)); });
}

}  // namespace quire::cli
