// quire embed: a file of texts in, a file of vectors out, a few thousand at a time.
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include <fmt/format.h>

#include "base/named_file.h"
#include "cli/backend.h"
#include "cli/commands.h"
#include "cli/hub_options.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "quire/llm.h"
#include "server/json_text.h"

namespace quire::cli {
namespace {

struct EmbedOptions {
  EngineConfig engine;
  NodeOptions nodes;
  HubFlags hub;
  std::string input;
  std::string output;
  PoolingOptions pooling;
  bool quiet = false;
};

// Takes vectors in order.
class VectorFile {
 public:
  virtual ~VectorFile() = default;
  virtual Status status() const = 0;  // whether it can be written
  virtual Status add(const EmbeddingOutput& output) = 0;
  virtual Status finish() = 0;
};

// NumPy's format, version 1.0: a header of a fixed length, which is written once more when the number of rows is known.
class NpyFile final : public VectorFile {
 public:
  explicit NpyFile(const std::string& path) : path_(path), file_(path, std::ios::binary | std::ios::trunc) {}

  Status status() const override {
    return file_ ? Status() : invalid_argument("{}: cannot be written: {}", path_, std::strerror(errno));
  }

  Status add(const EmbeddingOutput& output) override {
    static_assert(std::endian::native == std::endian::little, "the header says so");
    if (rows_ == 0) {
      columns_ = output.embedding.size();
      write_header();
    }
    ++rows_;
    file_.write(reinterpret_cast<const char*>(output.embedding.data()),
                static_cast<std::streamsize>(output.embedding.size() * sizeof(float)));
    return status();
  }
  Status finish() override {
    file_.seekp(0);
    write_header();
    file_.flush();
    return status();
  }

 private:
  static constexpr size_t kHeaderBytes = 128;

  void write_header() {
    std::string text = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows_, columns_);
    constexpr char kBegin[] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, kHeaderBytes - 10, 0};
    text.resize(kHeaderBytes - sizeof(kBegin) - 1, ' ');
    file_.write(kBegin, sizeof(kBegin));
    file_ << text << '\n';
  }
  const std::string path_;
  std::ofstream file_;
  size_t rows_ = 0;
  size_t columns_ = 0;
};

// {"index": 0, "embedding": [...], "tokens": 5}, a line each.
class JsonLinesFile final : public VectorFile {
 public:
  // "-" or nothing: standard output.
  explicit JsonLinesFile(const std::string& path) : path_(path) {
    file_ = path.empty() || path == "-" ? stdout : std::fopen(path.c_str(), "wb");
  }
  ~JsonLinesFile() override {
    if (file_ != nullptr && file_ != stdout) std::fclose(file_);
  }

  Status status() const override { return file_ == nullptr ? failed() : Status(); }
  Status add(const EmbeddingOutput& output) override {
    std::string line =
        fmt::format("{{\"index\":{},\"tokens\":{},\"embedding\":[", index_++, output.prompt_token_ids.size());
    server::append_json_list(line, output.embedding, [&](float value) { server::append_json(line, value); });
    line += "]}\n";
    if (file_ == nullptr || std::fwrite(line.data(), 1, line.size(), file_) != line.size()) return failed();
    return {};
  }
  Status finish() override { return file_ != nullptr && std::fflush(file_) == 0 ? Status() : failed(); }

 private:
  Status failed() const { return invalid_argument("{}: cannot be written: {}", path_, std::strerror(errno)); }

  const std::string path_;
  std::FILE* file_;
  int64_t index_ = 0;
};

// Where the vectors go while they are computed: beside the file, which is there, whole, at the end or as it was.
class Output {
 public:
  // Errors: invalid_argument: it is the file of the texts, or cannot be written.
  static Result<Output> open(const std::string& path, const std::string& input) {
    std::error_code error;
    if (!input.empty() && !path.empty() && std::filesystem::equivalent(input, path, error)) {
      return invalid_argument("--output-file is the file of the texts, {}: name another", input);
    }
    Output out;
    out.path_ = path;
    const bool is_stream = path.empty() || path == "-" ||
                           (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error));
    out.written_ = is_stream ? path : path + ".part";
    if (path.ends_with(".npy")) {
      out.file_ = std::make_unique<NpyFile>(out.written_);
    } else {
      out.file_ = std::make_unique<JsonLinesFile>(out.written_);
    }
    QUIRE_RETURN_IF_ERROR(out.file_->status());
    return out;
  }
  Output(Output&&) = default;
  ~Output() {
    file_.reset();
    std::error_code error;
    if (!is_done_ && written_ != path_) std::filesystem::remove(written_, error);
  }

  Status add(const EmbeddingOutput& output) { return file_->add(output); }
  Status finish() {
    QUIRE_RETURN_IF_ERROR(file_->finish());
    file_.reset();
    std::error_code error;
    if (written_ != path_) std::filesystem::rename(written_, path_, error);
    if (error) return invalid_argument("{}: cannot be written: {}", path_, error.message());
    is_done_ = true;
    return {};
  }

 private:
  Output() = default;

  std::string path_;
  std::string written_;
  std::unique_ptr<VectorFile> file_;
  bool is_done_ = false;
};

// The next lines, each a text; a line's end is no part of it. Empty lines are texts, too: rows stay where they are.
std::vector<Prompt> read_lines(std::istream& in, size_t most) {
  std::vector<Prompt> lines;
  std::string line;
  while (lines.size() < most && std::getline(in, line)) {
    if (line.ends_with('\r')) line.pop_back();
    lines.emplace_back(line);
  }
  return lines;
}

Status run(EmbedOptions& options) {
  constexpr size_t kAtOnce = 4096;
  QUIRE_ASSIGN_OR_RETURN(const auto ranks, join_ranks(options.engine, options.nodes));
  std::ifstream file;
  const bool from_stdin = options.input.empty() || options.input == "-";
  if (!from_stdin && !computes_for_another(ranks)) {
    QUIRE_RETURN_IF_ERROR(check_file(options.input, FileUse::kReadOnce));
    file.open(options.input, std::ios::binary);
    if (!file) return not_found("{}: cannot be read: {}", options.input, std::strerror(errno));
  }
  std::istream& in = from_stdin ? std::cin : file;
  QUIRE_RETURN_IF_ERROR(resolve_model(options.engine, options.hub));
  if (options.engine.runner == Runner::kAuto) options.engine.runner = Runner::kPooling;
  if (computes_for_another(ranks)) return run_as_rank(*ranks, options.engine);
  QUIRE_ASSIGN_OR_RETURN(Output out, Output::open(options.output, from_stdin ? "" : options.input));
  QUIRE_ASSIGN_OR_RETURN(auto engine, make_engine(options.engine, Drive::kOwnThread, {.ranks = group_of(ranks)}));
  LLM llm(std::move(engine));
  options.pooling.progress = false;
  const bool shows = !options.quiet && isatty(STDERR_FILENO) != 0;
  const auto start = std::chrono::steady_clock::now();
  int64_t texts = 0;
  int64_t tokens = 0;
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  while (true) {
    const std::vector<Prompt> lines = read_lines(in, kAtOnce);
    if (lines.empty()) break;
    auto vectors = llm.embed(lines, options.pooling);
    if (!vectors.ok())
      return vectors.status().with_prefix(
          fmt::format("lines {} to {}: ", texts + 1, texts + static_cast<int64_t>(lines.size())));
    for (const EmbeddingOutput& vector : *vectors) {
      QUIRE_RETURN_IF_ERROR(out.add(vector));
      tokens += static_cast<int64_t>(vector.prompt_token_ids.size());
    }
    texts += static_cast<int64_t>(lines.size());
    if (shows)
      std::fprintf(stderr, "\r%lld texts, %.0f a second ", static_cast<long long>(texts),
                   static_cast<double>(texts) / seconds());
  }
  if (texts == 0)
    return invalid_argument("there is no text to embed: give a line each, by --input-file or on standard input");
  QUIRE_RETURN_IF_ERROR(out.finish());
  if (!options.quiet) {
    std::fprintf(stderr, "%s%lld texts of %lld tokens in %.1f s: %.0f texts a second\n", shows ? "\r" : "",
                 static_cast<long long>(texts), static_cast<long long>(tokens), seconds(),
                 static_cast<double>(texts) / seconds());
  }
  return {};
}

}  // namespace

void add_embed_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<EmbedOptions>();
  CLI::App* command = program.add_subcommand("embed", "Texts, a line each, to vectors");
  add_model_argument(*command, options->engine);
  add_hub_options(*command, options->hub);
  command->add_option("-i,--input-file", options->input, "Texts, one a line; nothing or -: standard input");
  command->add_option("-o,--output-file", options->output,
                      "NAME.npy: NumPy's float32 matrix, a row a line; else JSON lines; nothing or -: standard output");
  command->add_option("--dimensions", options->pooling.dimensions,
                      "Cut vectors to so many numbers (Matryoshka models); 0: all");
  command->add_option("--prompt-name", options->pooling.prompt_name,
                      "Which of the prompts in the model's files stands before each text (query, document, ...)");
  command->add_option("--truncate-prompt-tokens", options->pooling.max_tokens,
                      "Cut longer texts to so many tokens; -1: to the context; 0: refuse what is longer than that");
  command->add_flag("-q,--quiet", options->quiet, "No line about the speed");
  add_engine_options(*command, options->engine);
  add_node_options(*command, options->nodes);
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
