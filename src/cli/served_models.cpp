#include "cli/served_models.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "cli/backend.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "engine/pooling.h"
#include "runner/adapter_store.h"
#include "runner/memory_planner.h"
#include "runner/open_checkpoint.h"
#include "runner/text_files.h"
#include "runner/turns.h"
#include "server/kv_events.h"
#include "server/sampling_defaults.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

// The last component of the path, however it is spelled ("models/", ".").
std::string file_name(const std::string& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).filename().string();
}

Result<std::shared_ptr<engine::Engine>> load(const EngineConfig& config, const std::string& root, Metrics& metrics,
                                             const std::shared_ptr<runner::Turns>& turns,
                                             const std::vector<LoraModule>& adapters,
                                             const std::shared_ptr<server::KvEventPublisher>& kv_events,
                                             comm::NetworkGroup* ranks) {
  const auto start = std::chrono::steady_clock::now();
  QUIRE_ASSIGN_OR_RETURN(TextSource text, engine::Engine::open_text(config));
  QUIRE_ASSIGN_OR_RETURN(auto executors, make_executors(config, {.ranks = ranks}));
  const runner::Executor& first = *executors.front();
  log_info("{}: {}, {} on {}", root, first.model().architecture, first.model().dtype, first.description());
  if (executors.size() > 1) log_info("{} engines of it, each as follows", executors.size());
  if (first.model().task != ModelTask::kGenerate) {
    log_info("serves {}", engine::describe_pooling(first.model()));
  }
  std::istringstream memory(first.memory().to_string());
  for (std::string line; std::getline(memory, line);) log_info("memory: {}", line);
  for (auto& executor : executors) {
    if (turns != nullptr) executor = runner::make_turn_taking_executor(std::move(executor), turns);
  }
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<engine::Engine> engine,
                         engine::Engine::create(config, std::move(text), std::move(executors), &metrics));
  if (kv_events != nullptr) {
    kv_events->publish({{.kind = KvCacheEvent::Kind::kCleared}});  // of the engine before it
    engine->on_kv_events([kv_events](std::vector<KvCacheEvent> events) { kv_events->publish(std::move(events)); });
  }
  QUIRE_RETURN_IF_ERROR(load_adapters(*engine, adapters));
  if (turns != nullptr) {
    log_info("model {} loaded in {:.2f} s", config.served_model_name,
             std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return engine;
}

Status check_one_model_flags(const ServeOptions& options) {
  const EngineConfig& engine = options.engine;
  const auto refused = [](const char* flag) {
    return invalid_argument("{} is of one model, and there are several: leave it out.", flag);
  };
  if (!options.server.served_model_names.empty()) {
    return invalid_argument("--served-model-name is of one model; several have their names in --model NAME=MODEL.");
  }
  if (!engine.tokenizer.empty()) return refused("--tokenizer");
  if (!engine.chat_template.empty()) return refused("--chat-template");
  if (!engine.trace_file.empty()) return refused("--trace-file");
  if (options.kv_events.enabled) return refused("--kv-events-config");
  if (engine.kv_transfer) return refused("--kv-transfer-config");
  return {};
}

// For the list of models, which has it before one is loaded.
Result<server::SamplingDefaults> chat_sampling_before_loading(const EngineConfig& config,
                                                              const checkpoint::Checkpoint& checkpoint,
                                                              const server::ServerConfig& server) {
  TextSource text;
  if (!config.skip_tokenizer_init) {
    QUIRE_ASSIGN_OR_RETURN(text, runner::read_text_source(config, checkpoint));
  }
  const boost::json::object& own = checkpoint.generation_config();
  const bool uses_own = server.use_generation_config && server.generation_config.empty() && !own.empty();
  QUIRE_ASSIGN_OR_RETURN(
      const server::SamplingDefaults advised,
      server::read_sampling_defaults(uses_own ? boost::json::serialize(own) : server.generation_config,
                                     server.override_generation_config));
  return server::chat_sampling(advised, text.chat_template).values;
}

// Adapters and guesses are of models that generate. Those that embed or classify beside them in one server, which has
// one set of flags, go without.
EngineConfig without_generation(EngineConfig config) {
  const EngineConfig plain;
  config.enable_lora = plain.enable_lora;
  config.max_loras = plain.max_loras;
  config.max_cpu_loras = plain.max_cpu_loras;
  config.max_lora_rank = plain.max_lora_rank;
  config.lora_dtype = plain.lora_dtype;
  config.enable_prompt_adapter = plain.enable_prompt_adapter;
  config.max_prompt_adapters = plain.max_prompt_adapters;
  config.max_prompt_adapter_token = plain.max_prompt_adapter_token;
  config.lora_dir = plain.lora_dir;
  config.speculative_config = plain.speculative_config;
  return config;
}

// How much of the memory each takes.
Status plan_all(ServeOptions& options, std::vector<EngineConfig>& configs, std::vector<server::ModelSource>& sources) {
  server::ServerConfig& server = options.server;
  QUIRE_ASSIGN_OR_RETURN(const auto backend, make_backend(options.engine));
  // What is left is for the program, the texts of requests and what a plan cannot know.
  constexpr double kShareOfFreeMemory = 0.9;
  if (server.models_memory_bytes == 0) {
    server.models_memory_bytes = static_cast<int64_t>(static_cast<double>(backend->free_memory()) * kShareOfFreeMemory);
  }
  const size_t at_once =
      server.max_loaded_models == 0 ? configs.size() : std::min(configs.size(), server.max_loaded_models);
  for (size_t i = 0; i < configs.size(); ++i) {
    EngineConfig& config = configs[i];
    config.memory_utilization = runner::memory_utilization(config, *backend) / static_cast<double>(at_once);
    const auto checkpoint = runner::open_checkpoint(config);
    const bool is_to_generate = config.enable_lora || config.enable_prompt_adapter ||
                                config.speculative_config.method != SpeculativeMethod::kNone;
    if (checkpoint.ok() && is_to_generate) {
      EngineConfig bare = without_generation(config);
      const auto found = runner::plan_model(bare, **checkpoint, *backend, server.models_memory_bytes);
      if (found.ok() && found->config.task != ModelTask::kGenerate) {
        config = std::move(bare);
        sources[i].adapter_path = nullptr;
      }
    }
    auto planned = checkpoint.ok() ? runner::plan_model(config, **checkpoint, *backend, server.models_memory_bytes)
                                   : Result<runner::PlannedModel>(checkpoint.status());
    if (!planned.ok()) return Status(planned.status()).with_prefix("model " + config.served_model_name + ": ");
    const MemoryPlan& memory = planned->memory;
    config.kv_cache_memory_bytes = memory.kv_bytes;  // the same however much is free when it is loaded
    sources[i].bytes = memory.weight_bytes + memory.workspace_bytes + memory.adapter_bytes + memory.kv_bytes;
    sources[i].max_model_len = planned->max_model_len;
    QUIRE_ASSIGN_OR_RETURN(sources[i].chat_sampling, chat_sampling_before_loading(config, **checkpoint, server));
    log_info("model {}: {} when it is loaded, {} of them its KV cache", config.served_model_name,
             format_bytes(sources[i].bytes), format_bytes(memory.kv_bytes));
  }
  log_info("models may take {} together", format_bytes(server.models_memory_bytes));
  return {};
}

}  // namespace

NamedModel named_model(std::string_view text) {
  const size_t equals = text.find('=');
  std::error_code ignored;
  const bool path = equals == std::string_view::npos || equals == 0 ||
                    text.substr(0, equals).find('/') != std::string_view::npos || fs::exists(text, ignored);
  if (path) return {.name = "", .path = std::string(text)};
  return {.name = std::string(text.substr(0, equals)), .path = std::string(text.substr(equals + 1))};
}

void add_models_argument(CLI::App& command, ServeOptions& options) {
  const auto take = [&options](const std::string& text) {
    const auto normal = [](const std::string& path) { return fs::path(path).lexically_normal(); };
    NamedModel model = named_model(text);
    for (const NamedModel& other : options.models) {
      if (!model.name.empty() || !other.name.empty()) continue;
      if (normal(other.path) == normal(model.path)) return;  // said twice
      throw CLI::ValidationError("MODEL", "two models are named, \"" + other.path + "\" and \"" + model.path +
                                              "\": give each a name (--model NAME=MODEL), or name one of them");
    }
    options.models.push_back(std::move(model));
  };
  command
      .add_option_function<std::string>(
          "model", take,
          "A .gguf file, a directory with config.json and safetensors, or a name on the Hugging Face Hub (ORG/NAME, "
          "ORG/NAME:Q4_K_M); nothing: the default model")
      ->type_name("MODEL");
  command
      .add_option_function<std::vector<std::string>>(
          "--model", [take](const std::vector<std::string>& all) { std::ranges::for_each(all, take); },
          "The same, as a flag; as NAME=MODEL it may be given several times: the first is loaded at once, others when "
          "a "
          "request names them")
      ->type_name("MODEL")
      ->allow_extra_args(false);
  add_lora_modules_option(command, options.lora_modules);
  constexpr const char* kGroup = "Several models";
  command
      .add_option("--models-memory", options.server.models_memory_bytes,
                  "What models and their KV caches may take together (8G, ...); 0: nine tenths of the free memory")
      ->group(kGroup)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  command.add_option("--models-max", options.server.max_loaded_models, "Models loaded at once; 0: as memory allows")
      ->group(kGroup)
      ->capture_default_str();
  command
      .add_option("--sleep-idle-seconds", options.sleep_idle_seconds,
                  "Seconds after which a model that nobody asks is unloaded; -1: never")
      ->group(kGroup)
      ->check(CLI::Range(-1.0, 1e8))
      ->capture_default_str();
}

Status resolve_models(ServeOptions& options) {
  if (options.models.empty()) options.models.emplace_back();  // the default model
  for (NamedModel& model : options.models) {
    EngineConfig config;
    config.model = model.path;
    QUIRE_RETURN_IF_ERROR(resolve_model(config, options.hub));
    model.path = config.model;
    model.hub_name = config.served_model_name;
  }
  return {};
}

Result<std::vector<server::ModelSource>> model_sources(ServeOptions& options, Metrics& metrics,
                                                       comm::NetworkGroup* ranks) {
  const bool several = options.models.size() > 1;
  if (several) QUIRE_RETURN_IF_ERROR(check_one_model_flags(options));
  if (ranks != nullptr && (several || options.sleep_idle_seconds >= 0)) {
    return unimplemented(
        "processes of other nodes (--nnodes, --distributed-executor-backend mpi, ray) compute one model as long as "
        "they live: leave out other models and --sleep-idle-seconds");
  }
  const auto turns = several ? std::make_shared<runner::Turns>() : nullptr;
  std::vector<EngineConfig> configs;
  std::vector<server::ModelSource> sources;
  for (const NamedModel& model : options.models) {
    EngineConfig config = options.engine;
    config.model = model.path;
    server::ModelSource source;
    source.root = model.hub_name.empty() ? file_name(config.model) : model.hub_name;
    source.names = options.server.served_model_names;
    if (!model.name.empty()) source.names = {model.name};
    if (source.names.empty()) source.names = {source.root};
    config.served_model_name = source.names.front();
    source.keeps_blocks = !config.kv_offload_dir.empty();
    if (!config.lora_dir.empty()) {
      source.adapter_path = [folder = config.lora_dir](std::string_view name) {
        Result<std::string> path = runner::path_in_folder(folder, name);
        return path.ok() ? *std::move(path) : std::string();
      };
    }
    configs.push_back(std::move(config));
    sources.push_back(std::move(source));
  }
  std::vector<std::vector<LoraModule>> adapters(sources.size());
  for (const LoraModule& adapter : options.adapters) {
    size_t base = 0;
    const auto is_called = [&](const server::ModelSource& source) {
      return std::ranges::find(source.names, adapter.base) != source.names.end();
    };
    if (!adapter.base.empty()) {
      base = static_cast<size_t>(std::ranges::find_if(sources, is_called) - sources.begin());
    }
    if (base == sources.size()) return no_such_base(adapter);
    adapters[base].push_back(adapter);
    sources[base].adapters.push_back(adapter.name);
  }
  if (several) QUIRE_RETURN_IF_ERROR(plan_all(options, configs, sources));
  if (options.sleep_idle_seconds >= 0) {
    options.server.model_idle_timeout =
        std::chrono::milliseconds(std::max<int64_t>(1, std::llround(options.sleep_idle_seconds * 1000)));
  }
  std::shared_ptr<server::KvEventPublisher> kv_events;
  if (options.kv_events.enabled) {
    QUIRE_ASSIGN_OR_RETURN(kv_events, server::KvEventPublisher::start(options.kv_events));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    sources[i].load = [config = configs[i], trace = configs[i].trace_file, loads = 0, root = sources[i].root, &metrics,
                       turns, own = adapters[i], kv_events, ranks]() mutable {
      // A trace is of one engine: the next one's is another file.
      if (++loads > 1 && !trace.empty()) config.trace_file = fmt::format("{}.{}", trace, loads);
      return load(config, root, metrics, turns, own, kv_events, ranks);
    };
  }
  return sources;
}

}  // namespace quire::cli
