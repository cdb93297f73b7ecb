// quire inspect: what a model is, and what of it would be refused and why, from the headers alone.
#include <algorithm>
#include <cstdio>
#include <map>

#include <boost/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_description.h"
#include "cli/backend.h"
#include "cli/commands.h"
#include "cli/hub_options.h"
#include "cli/kv_layers.h"
#include "cli/options.h"
#include "runner/memory_planner.h"
#include "runner/open_checkpoint.h"
#include "runner/text_files.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

struct InspectOptions {
  EngineConfig engine;
  HubFlags hub;
  bool tensors = false;
  bool json = false;
};

struct TypeCount {
  int64_t tensors = 0;
  int64_t values = 0;
  int64_t bytes = 0;
};

json::object tensors_of(const checkpoint::Checkpoint& checkpoint, bool each) {
  std::map<std::string, TypeCount> types;
  TypeCount all;
  json::array list;
  for (const checkpoint::CheckpointTensor& tensor : checkpoint.tensors()) {
    const int64_t values = tensor.view.shape.num_elements();
    const int64_t bytes = tensor.view.bytes();
    for (TypeCount* count : {&types[std::string(name(tensor.view.dtype))], &all}) {
      ++count->tensors;
      count->values += values;
      count->bytes += bytes;
    }
    if (!each) continue;
    json::array shape;
    for (int i = 0; i < tensor.view.shape.rank(); ++i) shape.push_back(tensor.view.shape[i]);
    list.push_back(json::object{{"name", tensor.name},
                                {"stored_name", tensor.stored_name},
                                {"type", name(tensor.view.dtype)},
                                {"shape", std::move(shape)},
                                {"bytes", bytes}});
  }
  json::object by_type;
  for (const auto& [type, count] : types)
    by_type[type] = {{"tensors", count.tensors}, {"values", count.values}, {"bytes", count.bytes}};
  json::object out{{"count", all.tensors}, {"values", all.values}, {"bytes", all.bytes}, {"types", std::move(by_type)}};
  if (each) out["list"] = std::move(list);
  return out;
}

json::object model_of(const ModelConfig& model) {
  json::object out{{"layers", model.num_layers},     {"hidden_size", model.hidden_size},
                   {"heads", model.num_heads},       {"kv_heads", model.num_kv_heads},
                   {"head_dim", model.head_dim},     {"intermediate_size", model.intermediate_size},
                   {"vocab_size", model.vocab_size}, {"context", model.max_position}};
  const auto windowed = std::ranges::count_if(model.layer_windows, [](int32_t window) { return window > 0; });
  if (windowed > 0) out["layers_with_a_window"] = windowed;
  return out;
}

// What the files say; every part that would be refused is in "unsupported", with the reason.
Result<json::object> inspect(InspectOptions& options) {
  QUIRE_RETURN_IF_ERROR(resolve_model(options.engine, options.hub));
  QUIRE_ASSIGN_OR_RETURN(auto checkpoint, runner::open_checkpoint(options.engine));
  QUIRE_ASSIGN_OR_RETURN(auto backend, make_backend(options.engine));
  json::array unsupported;
  const auto refuse = [&](const char* part, const Status& status) {
    unsupported.push_back(json::object{{"part", part}, {"reason", status.message()}});
  };
  json::object out{{"name", shown_model(options.engine)},
                   {"path", options.engine.model},
                   {"format", checkpoint->format() == checkpoint::Format::kGguf ? "GGUF" : "safetensors"}};
  if (const checkpoint::GgufDescription* gguf = checkpoint->gguf()) {
    out["architectures"] = json::array{gguf->model_class};
  } else if (const json::value* named = checkpoint->config().if_contains("architectures");
             named != nullptr && named->is_array()) {
    out["architectures"] = *named;
  }
  out["weights"] = checkpoint->describe_weights();
  const auto planned = runner::plan_model(options.engine, *checkpoint, *backend, backend->free_memory());
  if (planned.ok()) {
    out["model"] = model_of(planned->config);
    const MemoryPlan& memory = planned->memory;
    out["memory"] = {{"weight_bytes", memory.weight_bytes},       {"quantization", memory.quantization},
                     {"workspace_bytes", memory.workspace_bytes}, {"kv_bytes_per_token", memory.kv_token_bytes},
                     {"kv_dtype", name(planned->kv_dtype)},       {"kv_tokens", memory.kv_tokens()},
                     {"max_model_len", memory.max_model_len},     {"kv_layers", kv_layers_json(planned->kv_layout)}};
  } else {
    refuse("model", planned.status());
  }
  out["tensors"] = tensors_of(*checkpoint, options.tensors);
  QUIRE_ASSIGN_OR_RETURN(const TextSource source, runner::read_text_source(options.engine, *checkpoint));
  if (const auto tokenizer = text::Tokenizer::from_source(source); tokenizer.ok()) {
    out["tokenizer"] = (*tokenizer)->description();
  } else {
    refuse("tokenizer", tokenizer.status());
  }
  if (!source.chat_template.empty()) {
    out["chat_template_bytes"] = source.chat_template.size();
    const auto parsed = text::ChatTemplate::parse(source.chat_template);
    if (!parsed.ok()) refuse("chat template", parsed.status());
  }
  out["unsupported"] = std::move(unsupported);
  return out;
}

double megabytes(const json::value& bytes) {
  return static_cast<double>(bytes.to_number<int64_t>()) / 1e6;
}

void print_tensors(const json::object& tensors) {
  std::printf("tensors        %lld, %.1f million values, %.1f MB\n",
              static_cast<long long>(tensors.at("count").to_number<int64_t>()), megabytes(tensors.at("values")),
              megabytes(tensors.at("bytes")));
  for (const auto& [type, count] : tensors.at("types").as_object()) {
    std::printf("  %-12s %4lld, %.1f MB\n", std::string(type).c_str(),
                static_cast<long long>(count.at("tensors").to_number<int64_t>()), megabytes(count.at("bytes")));
  }
  if (!tensors.contains("list")) return;
  for (const json::value& tensor : tensors.at("list").as_array()) {
    std::printf("  %-8s %-16s %s\n", tensor.at("type").as_string().c_str(), json::serialize(tensor.at("shape")).c_str(),
                tensor.at("name").as_string().c_str());
  }
}

void print(const json::object& found) {
  const auto line = [](const char* title, const std::string& text) { std::printf("%-14s %s\n", title, text.c_str()); };
  line("model", found.at("name").as_string().c_str());
  line("format",
       fmt::format("{}, {}", found.at("format").as_string().c_str(), found.at("weights").as_string().c_str()));
  if (found.contains("architectures")) {
    const json::array& names = found.at("architectures").as_array();
    line("family", names.empty() || !names[0].is_string() ? "?" : std::string(names[0].as_string()));
  }
  if (found.contains("model")) {
    const auto number = [&](const char* key) { return found.at("model").at(key).to_number<int64_t>(); };
    line("shape", fmt::format("{} layers, hidden {}, {} heads of {}, {} kv heads, vocabulary {}", number("layers"),
                              number("hidden_size"), number("heads"), number("head_dim"), number("kv_heads"),
                              number("vocab_size")));
    line("context", fmt::format("{} tokens", number("context")));
  }
  print_tensors(found.at("tensors").as_object());
  line("tokenizer", found.contains("tokenizer") ? found.at("tokenizer").as_string().c_str() : "none that can be used");
  line("chat template", found.contains("chat_template_bytes")
                            ? fmt::format("{} bytes", found.at("chat_template_bytes").to_number<int64_t>())
                            : "none");
  if (found.contains("memory")) {
    const json::value& memory = found.at("memory");
    line("memory",
         fmt::format("weights {:.1f} MB, workspace {:.1f} MB, {} B of KV cache a token ({}); room for {} tokens",
                     megabytes(memory.at("weight_bytes")), megabytes(memory.at("workspace_bytes")),
                     memory.at("kv_bytes_per_token").to_number<int64_t>(), memory.at("kv_dtype").as_string().c_str(),
                     memory.at("kv_tokens").to_number<int64_t>()));
    if (!memory.at("quantization").as_string().empty()) line("", memory.at("quantization").as_string().c_str());
  }
  const json::array& unsupported = found.at("unsupported").as_array();
  if (unsupported.empty()) line("unsupported", "nothing");
  for (const json::value& one : unsupported) {
    line("unsupported",
         fmt::format("{}: {}", one.at("part").as_string().c_str(), one.at("reason").as_string().c_str()));
  }
}

Status run(InspectOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const json::object found, inspect(options));
  if (options.json) {
    std::printf("%s\n", json::serialize(found).c_str());
  } else {
    print(found);
  }
  return {};
}

}  // namespace

void add_inspect_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      program.add_subcommand("inspect", "What a model is, and what of it would be refused, without loading");
  add_model_argument(*command, options->engine);
  add_hub_options(*command, options->hub);
  command->add_flag("--tensors", options->tensors, "Every tensor, too");
  command->add_flag("--json", options->json, "One JSON object");
  add_engine_options(*command, options->engine);
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
