// quire chat: a conversation in the terminal.
#include <histedit.h>
#include <signal.h>
#include <sys/select.h>
#include <unistd.h>

#include <clocale>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "cli/adapters.h"
#include "cli/backend.h"
#include "cli/commands.h"
#include "cli/hub_options.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "engine/chat.h"
#include "engine/engine.h"
#include "engine/output.h"

namespace quire::cli {
namespace {

struct ChatCommandOptions {
  EngineConfig engine;
  NodeOptions nodes;
  HubFlags hub;
  SamplingParams sampling;
  std::string system;
  std::string lora;  // the path of an adapter; empty: none
};

char prompt_text[] = "> ";
char* prompt_of(EditLine*) {
  return prompt_text;
}

// Until there is something to read. False: Ctrl-C came, before it or meanwhile.
bool wait_for_input() {
  sigset_t interrupt;
  sigset_t before;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &interrupt, &before);  // it comes while we wait, or to another thread
  bool ready = false;
  while (!ready && !InterruptGuard::interrupted()) {
    fd_set input;
    FD_ZERO(&input);
    FD_SET(STDIN_FILENO, &input);
    ready = ::pselect(STDIN_FILENO + 1, &input, nullptr, nullptr, nullptr, &before) > 0;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return ready;
}

// A character of standard input, in UTF-8. 0: Ctrl-C, or the end; the library's own function goes on reading after a
// signal.
int next_character(EditLine* /*edit*/, wchar_t* out) {
  uint32_t code = 0;
  for (int left = -1; left != 0; --left) {
    unsigned char byte = 0;
    if (!wait_for_input() || ::read(STDIN_FILENO, &byte, 1) != 1) return 0;
    const bool begins = left < 0 || (byte & 0xC0) != 0x80;
    if (begins) {
      left = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
      code = left == 1 ? byte : byte & (0xFFu >> (left + 1));
    } else {
      code = code << 6 | (byte & 0x3F);
    }
  }
  *out = static_cast<wchar_t>(code);
  return 1;
}

// Lines from a terminal with editing and history, or plain lines from a pipe.
class LineReader {
 public:
  LineReader() {
    if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) return;
    // The library keeps no character that the locale does not have.
    if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    edit_ = el_init("quire", stdin, stdout, stderr);
    history_ = history_init();
    if (edit_ == nullptr || history_ == nullptr) return;
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    el_set(edit_, EL_PROMPT, prompt_of);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_SIGNAL, 0);
    el_set(edit_, EL_GETCFN, next_character);
    el_set(edit_, EL_BIND, "^[[A", "ed-prev-history", nullptr);
    el_set(edit_, EL_BIND, "^[[B", "ed-next-history", nullptr);
  }
  ~LineReader() {
    if (edit_ != nullptr) el_end(edit_);
    if (history_ != nullptr) history_end(history_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool interactive() const { return edit_ != nullptr; }

  // nullopt: end of input.
  std::optional<std::string> next() {
    std::string line;
    if (!interactive()) {
      if (!std::getline(std::cin, line)) return std::nullopt;
      return line;
    }
    while (true) {
      int length = 0;
      const char* text = el_gets(edit_, &length);
      if (text == nullptr || length <= 0) {
        if (!InterruptGuard::interrupted()) return std::nullopt;
        InterruptGuard::clear();  // Ctrl-C at the prompt: a new line
        el_reset(edit_);
        std::fputc('\n', stdout);
        continue;
      }
      line.assign(text, static_cast<size_t>(length));
      while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
      HistEvent event;
      if (!line.empty()) history(history_, &event, H_ENTER, line.c_str());
      return line;
    }
  }

 private:
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
};

class Conversation {
 public:
  Conversation(engine::Engine& engine, const ChatCommandOptions& options, std::string adapter)
      : engine_(engine), options_(options), adapter_(std::move(adapter)) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!options_.system.empty()) set_system(options_.system);
  }
  bool is_under_way() const { return messages_.size() > 2; }
  void set_system(const std::string& text) {
    messages_.clear();
    if (!text.empty()) messages_.push_back(boost::json::object{{"role", "system"}, {"content", text}});
  }

  // Streams the answer to one message; a failed turn leaves the conversation as it was.
  Status say(const std::string& text) {
    messages_.push_back(boost::json::object{{"role", "user"}, {"content", text}});
    auto answer = answer_now();
    if (!answer.ok()) {
      messages_.pop_back();
      return answer.status();
    }
    messages_.push_back(boost::json::object{{"role", "assistant"}, {"content", *answer}});
    return {};
  }

 private:
  Result<std::string> answer_now() {
    QUIRE_ASSIGN_OR_RETURN(engine::ChatPrompt prompt, engine::render_chat(engine_, messages_, {}));
    const auto num_prompt_tokens = static_cast<int64_t>(prompt.ids.size());
    QUIRE_ASSIGN_OR_RETURN(auto completion, engine::Completion::start_one(engine_, {.prompt = std::move(prompt.ids),
                                                                                    .params = options_.sampling,
                                                                                    .adapter = adapter_}));
    InterruptGuard::clear();
    StreamedAnswer answer = stream_answer(*completion);
    InterruptGuard::clear();
    std::fputs(answer.interrupted ? " (stopped)\n" : "\n", stdout);
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", speed_line(num_prompt_tokens, answer).c_str());
    if (!answer.error.ok()) return answer.error;
    return std::move(answer.text);
  }

  engine::Engine& engine_;
  const ChatCommandOptions& options_;
  const std::string adapter_;  // its name; empty: the model as it is
  boost::json::array messages_;
};

constexpr const char* kHelp =
    "/reset         forget the conversation\n"
    "/system TEXT   start anew with this system message\n"
    "/help          this list\n"
    "/exit          leave (or Ctrl-D)\n"
    "Ctrl-C stops an answer.\n";

// A line that begins with a slash. False: leave.
bool obey(const std::string& line, Conversation& conversation) {
  if (line == "/exit" || line == "/quit" || line == "/bye") return false;
  if (line == "/reset") {
    conversation.reset();
    std::fputs("(a new conversation)\n", stderr);
  } else if (line.starts_with("/system")) {
    const size_t text = line.find_first_not_of(' ', 7);
    conversation.set_system(text == std::string::npos ? "" : line.substr(text));
    std::fputs("(a new conversation with this system message)\n", stderr);
  } else {
    if (line != "/help") std::fprintf(stderr, "There is no command %s.\n", line.c_str());
    std::fputs(kHelp, stderr);
  }
  return true;
}

Status run(ChatCommandOptions& options, const CLI::App& command) {
  QUIRE_ASSIGN_OR_RETURN(const auto ranks, join_ranks(options.engine, options.nodes));
  QUIRE_RETURN_IF_ERROR(resolve_model(options.engine, options.hub));
  QUIRE_RETURN_IF_ERROR(make_place_for(options.lora, options.engine));
  if (computes_for_another(ranks)) return run_as_rank(*ranks, options.engine);
  QUIRE_ASSIGN_OR_RETURN(auto engine, make_engine(options.engine, Drive::kOwnThread, {.ranks = group_of(ranks)}));
  if (engine->model().task != ModelTask::kGenerate) {
    return invalid_argument("the model gives {}, and generates no text: use quire embed",
                            engine->model().task == ModelTask::kEmbed ? "embeddings" : "scores");
  }
  QUIRE_ASSIGN_OR_RETURN(std::string adapter, load_only_adapter(*engine, options.lora));
  QUIRE_ASSIGN_OR_RETURN(const std::string sampling, apply_chat_sampling(command, engine->text(), options.sampling));
  LineReader reader;
  if (reader.interactive()) {
    std::fprintf(stderr, "%s. Sampling: %s. /help lists the commands.\n", shown_model(options.engine).c_str(),
                 sampling.c_str());
  }
  Conversation conversation(*engine, options, std::move(adapter));
  const InterruptGuard guard;
  while (std::optional<std::string> line = reader.next()) {
    if (line->find_first_not_of(" \t") == std::string::npos) continue;
    if (line->front() == '/') {
      if (!obey(*line, conversation)) break;
      continue;
    }
    const Status status = conversation.say(*line);
    if (status.ok()) continue;
    fail(status);
    if (conversation.is_under_way())
      std::fputs("/reset forgets the conversation, where it has become too long.\n", stderr);
  }
  return {};
}

}  // namespace

void add_chat_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<ChatCommandOptions>();
  options->engine.max_num_seqs = 1;
  options->sampling.max_tokens = std::nullopt;  // what the context leaves
  CLI::App* command = program.add_subcommand("chat", "Talk with a model in the terminal");
  add_model_argument(*command, options->engine);
  add_hub_options(*command, options->hub);
  command->add_option("--system", options->system, "System message");
  command->add_option("--seed", options->sampling.seed, "The same seed gives the same answers")->group("Sampling");
  add_sampling_options(*command, options->sampling);
  tell_chat_sampling(*command, "what suits the model");
  add_engine_options(*command, options->engine);
  add_lora_option(*command, options->lora);
  add_node_options(*command, options->nodes);
  command->callback([options, command, &exit_code] { exit_code = exit_code_of(run(*options, *command)); });
}

}  // namespace quire::cli
