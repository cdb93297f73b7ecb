// quire quantize: a checkpoint of 16 or 32 bits rounded and written, as GGUF or as compressed-tensors.
#include <cstdio>

#include "base/thread_pool.h"
#include "cli/backend.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/hub_options.h"
#include "cli/options.h"
#include "ops/backend.h"
#include "quantize/text_windows.h"
#include "quantize/write_compressed.h"
#include "quantize/write_gguf.h"
#include "runner/open_checkpoint.h"
#include "runner/text_files.h"
#include "text/tokenizer.h"

namespace quire::cli {
namespace {

struct QuantizeOptions {
  std::string model;
  std::string out;
  HubFlags hub;
  EngineConfig engine;
  std::string type = "q4_k_m";
  std::string calibration_text;
  int64_t calibration_tokens = 65536;
  int64_t window = 512;
  bool allow_requantize = false;
  quantize::CompressedOptions compressed;
  bool no_calibration = false;
  bool quiet = false;
};

Result<std::unique_ptr<quantize::LayerWalk>> make_walk(const QuantizeOptions& options,
                                                       std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                                       const TextSource& text, ops::Backend& backend) {
  if (options.window < 2 || options.calibration_tokens < 2) {
    return invalid_argument("--calibration-tokens {} in windows of --window {}: expected at least 2 of both",
                            options.calibration_tokens, options.window);
  }
  QUIRE_ASSIGN_OR_RETURN(const auto tokenizer, text::Tokenizer::from_source(text));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, quantize::read_ids(options.calibration_text, *tokenizer));
  return quantize::LayerWalk::create(
      std::move(checkpoint), backend,
      quantize::cut_windows(ids, quantize::first_ids(*tokenizer), options.window, options.calibration_tokens));
}

void report_written(const QuantizeOptions& options, const quantize::WrittenFile& written) {
  end_progress();
  std::string types;
  for (const auto& [type, bytes] : written.bytes_by_type)
    types += fmt::format("{}{} {:.1f} MB", types.empty() ? "" : ", ", type, static_cast<double>(bytes) / 1e6);
  std::printf("%s: %.1f MB, %lld tensors (%s)\n", options.out.c_str(), static_cast<double>(written.bytes) / 1e6,
              static_cast<long long>(written.tensors), types.c_str());
  if (written.tensors_found_done > 0) {
    std::printf("%lld of them were written before, and gone on from\n",
                static_cast<long long>(written.tensors_found_done));
  }
}

Status run(QuantizeOptions& options) {
  options.engine.model = options.model;
  QUIRE_RETURN_IF_ERROR(resolve_model(options.engine, options.hub));
  const bool is_compressed = options.type == "w4a16" || options.type == "W4A16";
  quantize::GgufMix mix;
  if (!is_compressed) {
    QUIRE_ASSIGN_OR_RETURN(mix, quantize::find_gguf_mix(options.type));
  }
  // What calibration sees is the model itself, not its rounded inputs.
  options.engine.activation_dtype = ActivationDType::kFloat32;
  options.engine.device.kind = DeviceChoice::Kind::kCpu;
  QUIRE_ASSIGN_OR_RETURN(auto checkpoint, runner::open_checkpoint(options.engine));
  QUIRE_ASSIGN_OR_RETURN(const TextSource text, runner::read_text_source(options.engine, *checkpoint));
  QUIRE_ASSIGN_OR_RETURN(auto backend, make_backend(options.engine));
  const auto progress = [&](const std::string& line) {
    if (!options.quiet) show_progress(line);
  };
  std::unique_ptr<quantize::LayerWalk> walk;
  if (!options.calibration_text.empty()) {
    QUIRE_ASSIGN_OR_RETURN(walk, make_walk(options, checkpoint, text, *backend));
  }
  const uint64_t source_hash = quantize::hash_checkpoint(*checkpoint);
  if (is_compressed) {
    if (walk == nullptr && !options.no_calibration) {
      return invalid_argument(
          "--type w4a16: give a text to calibrate with (--calibration-text FILE), or --no-calibration to round each "
          "weight by itself");
    }
    options.compressed.out = options.out;
    options.compressed.source_hash = source_hash;
    options.compressed.source = options.engine.model;
    QUIRE_ASSIGN_OR_RETURN(const auto written,
                           quantize::write_compressed(checkpoint, walk.get(), *backend, options.compressed, progress));
    report_written(options, written);
    return {};
  }
  QUIRE_ASSIGN_OR_RETURN(quantize::GgufSource source, quantize::describe_source(*checkpoint, text));
  quantize::ImportanceMatrix importance;
  if (walk != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(importance, quantize::collect_importance(*walk, progress));
    walk.reset();
  }
  ThreadPool threads({.num_threads = options.engine.threads, .pin = false});
  QUIRE_ASSIGN_OR_RETURN(
      const auto written,
      quantize::write_gguf(
          std::move(source), importance,
          {.mix = mix, .out = options.out, .source_hash = source_hash, .allow_requantize = options.allow_requantize},
          threads, progress));
  report_written(options, written);
  return {};
}

}  // namespace

void add_quantize_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<QuantizeOptions>();
  CLI::App* command = program.add_subcommand(
      "quantize", "Write a checkpoint of 16 or 32 bits in fewer: as GGUF, or as compressed-tensors W4A16");
  command->add_option("MODEL", options->model, "A GGUF file, a folder of safetensors, or a name on the Hub")
      ->required();
  command->add_option("OUT", options->out, "The file, or for w4a16 the folder, to write; must not exist")->required();
  command->add_option("TYPE", options->type, "The same as --type, as llama-quantize has it");
  add_hub_options(*command, options->hub);
  const auto option = [&](const char* name, auto& value, const char* help) {
    return command->add_option(name, value, help)->group("Quantize")->capture_default_str();
  };
  option("--type", options->type,
         "Of GGUF q8_0, q4_0, q4_1, q5_0, q5_1, q4_k_s, q4_k_m, q5_k_s, q5_k_m, q6_k, f16, bf16, f32; or w4a16");
  option("--calibration-text,--imatrix-text", options->calibration_text,
         "A text that the model is run over: of GGUF an importance matrix is collected from it, w4a16 is calibrated "
         "with it");
  option("--calibration-tokens", options->calibration_tokens, "Of the text so many are read");
  option("--window", options->window, "Tokens of the text that are read together");
  option("--group-size", options->compressed.group_size,
         "w4a16: columns that share a scale; 0: 128, or what the widths of the matrices allow (64, 32)");
  option("--damping", options->compressed.damping, "w4a16: share of the mean that is added to the Hessian's diagonal");
  command->add_flag("--no-calibration", options->no_calibration, "w4a16: round each weight by itself")
      ->group("Quantize");
  command->add_flag("--allow-requantize", options->allow_requantize, "GGUF: round what has been rounded before, too")
      ->group("Quantize");
  command->add_flag("-q,--quiet", options->quiet, "No progress");
  option("--threads", options->engine.threads, "Threads; 0: the cores");
  command->callback([options, command, &exit_code] {
    if (command->count("TYPE") > 0 && command->count("--type") > 0) {
      throw CLI::ValidationError("TYPE", "two types are given, one of them behind --type (" + options->type + ")");
    }
    exit_code = exit_code_of(run(*options));
  });
}

}  // namespace quire::cli
