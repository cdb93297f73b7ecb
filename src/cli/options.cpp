#include "cli/options.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <boost/json.hpp>

#include "base/parse_json.h"
#include "cli/choice_option.h"
#include "cli/numbers.h"
#include "cli/speculative_options.h"
#include "server/sampling_defaults.h"

namespace quire::cli {
namespace {

constexpr const char* kDefaultModelFile = "SmolLM2-135M-Instruct.Q4_1.gguf";

CLI::Validator as_max_model_len() {
  return {
      [](std::string& text) {
        if (text == "auto" || text == "-1") {
          return "\"" + text +
                 "\" would fit the length to the memory, which is not built: give a number, or leave it out for what "
                 "the model was made for (`quire plan` shows what fits)";
        }
        return as_whole_number()(text);
      },
      "", ""};
}

}  // namespace

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string default_model_path() {
  std::filesystem::path cache = environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = std::filesystem::path(environment("HOME")) / ".cache";
  return (cache / "quire" / "models" / kDefaultModelFile).string();
}

void name_model(EngineConfig& config, const std::string& path) {
  if (path.empty()) {
    throw CLI::ValidationError("MODEL", "the name of the model is empty: leave it out for the default model");
  }
  const auto normal = [](const std::string& text) { return std::filesystem::path(text).lexically_normal(); };
  if (!config.model.empty() && normal(config.model) != normal(path)) {
    throw CLI::ValidationError(
        "MODEL", "two models are named, \"" + config.model + "\" and \"" + path + "\" (--model): name one of them");
  }
  if (config.model.empty()) config.model = path;
}

void add_model_flag(CLI::App& app, EngineConfig& config) {
  app.add_option_function<std::string>(
         "--model", [&config](const std::string& path) { name_model(config, path); }, "The same, as a flag")
      ->type_name("MODEL");
}

void add_model_argument(CLI::App& app, EngineConfig& config) {
  // Two options, not one with two names: given as both, the parser would only count arguments.
  app.add_option_function<std::string>(
         "model", [&config](const std::string& path) { name_model(config, path); }, kModelHelp)
      ->type_name("MODEL");
  add_model_flag(app, config);
}

namespace {

// vLLM's object: {"pooling_type": "MEAN", "normalize": true, "is_matryoshka": true}. Throws CLI::ValidationError.
void read_pooler_config(const std::string& text, EngineConfig& config) {
  const auto refuse = [](const std::string& why) { throw CLI::ValidationError("--pooler-config " + why); };
  boost::system::error_code error;
  const boost::json::value value = parse_json(text, error);
  if (error || !value.is_object()) refuse("is no JSON object: " + text);
  for (const auto& [key, member] : value.get_object()) {
    if (key == "pooling_type" || key == "seq_pooling_type") {
      if (!member.is_string()) refuse("pooling_type must be a string: LAST, MEAN or CLS");
      const auto type = parse_choice<PoolingType>(std::string(member.get_string()));
      if (!type.ok()) refuse(type.status().message());
      config.pooling_type = *type;
    } else if (key == "normalize" || key == "use_activation" || key == "is_matryoshka") {
      if (!member.is_bool()) refuse(std::string(key) + " must be true or false");
      (key == "is_matryoshka" ? config.matryoshka : config.normalize) = member.get_bool();
    } else {
      refuse("has a member \"" + std::string(key) + "\"; known: pooling_type, normalize, is_matryoshka");
    }
  }
}

// vLLM's older name of --runner and --convert. Throws CLI::ValidationError.
void read_task(const std::string& task, EngineConfig& config) {
  struct Task {
    std::string_view word;
    Runner runner;
    Convert convert;
  };
  static constexpr Task kTasks[] = {{"auto", Runner::kAuto, Convert::kAuto},
                                    {"generate", Runner::kGenerate, Convert::kAuto},
                                    {"embed", Runner::kPooling, Convert::kEmbed},
                                    {"embedding", Runner::kPooling, Convert::kEmbed},
                                    {"classify", Runner::kPooling, Convert::kClassify},
                                    {"score", Runner::kPooling, Convert::kClassify},
                                    {"reward", Runner::kPooling, Convert::kClassify}};
  for (const Task& one : kTasks) {
    if (task != one.word) continue;
    config.runner = one.runner;
    config.convert = one.convert;
    return;
  }
  throw CLI::ValidationError("--task \"" + task +
                             "\" is not known; choose one of: auto, generate, embed, classify, score, reward");
}

void add_model_options(CLI::App& app, EngineConfig& config) {
  constexpr const char* kModel = "Model";
  app.add_option("--tokenizer", config.tokenizer,
                 "tokenizer.json, or a directory that holds one, instead of the model's own")
      ->group(kModel);
  app.add_option("--chat-template", config.chat_template,
                 "Jinja template (a file, or the text) instead of the model's own")
      ->group(kModel);
  app.add_flag("--skip-tokenizer-init,!--no-skip-tokenizer-init", config.skip_tokenizer_init,
               "Serve token ids only, without a tokenizer")
      ->group(kModel);
  app.add_option("--max-model-len", config.max_model_len,
                 "Tokens of prompt and answer together (8192, 8K, ...); 0: what the model was made for")
      ->group(kModel)
      ->transform(as_max_model_len());
  add_choice(app, "--dtype", config.dtype,
             "What weights stored in 16 and 32 bits are converted to while they are loaded: auto (nothing), float32 "
             "(float), float16 (half), bfloat16; block formats keep theirs")
      ->group(kModel)
      ->capture_default_str();
  add_choice(
      app, "--quantization", config.quantization,
      "Round weights of 16 and 32 bits while they are loaded: none, int8, int4, fp8; or what the checkpoint is "
      "stored in, to be checked: awq, gptq, compressed-tensors, bitsandbytes, modelopt, torchao, hqq, fbgemm_fp8, "
      "fp8, mxfp4, quark (docs/models.md)")
      ->group(kModel);
  add_choice(app, "--activation-dtype", config.activation_dtype,
             "What inputs of matrix products are rounded to: auto (int12 for quantised weights, int16 where that "
             "matters; floats for others), float32, bfloat16, int8, int12, int16")
      ->group(kModel)
      ->capture_default_str();
}

void add_pooling_options(CLI::App& app, EngineConfig& config) {
  constexpr const char* kModel = "Model";
  CLI::Option* runner = add_choice(app, "--runner", config.runner,
                                   "What the model is served for: auto (what it was made for), generate, or pooling "
                                   "(vectors and scores of texts)")
                            ->group(kModel)
                            ->capture_default_str();
  CLI::Option* convert = add_choice(app, "--convert", config.convert,
                                    "With --runner pooling: auto (scores where the model has a classifying head, else "
                                    "vectors), none, embed, classify")
                             ->group(kModel)
                             ->capture_default_str();
  app.add_option_function<std::string>(
         "--task", [&config](const std::string& task) { read_task(task, config); },
         "The older name of the two: auto, generate, embed, classify, score, reward")
      ->group(kModel)
      ->excludes(runner)
      ->excludes(convert);
  app.add_option_function<std::string>(
         "--pooler-config,--override-pooler-config",
         [&config](const std::string& text) { read_pooler_config(text, config); },
         "How hidden states become a vector, over what the model's files say: a JSON object with pooling_type (LAST, "
         "MEAN, CLS), normalize and is_matryoshka (its vectors may be cut)")
      ->group(kModel);
}

void add_memory_options(CLI::App& app, EngineConfig& config) {
  constexpr const char* kMemory = "Memory and scheduling";
  app.add_option("--block-size", config.block_size, "Tokens a KV block")->group(kMemory)->capture_default_str();
  app.add_option("--kv-cache-memory-bytes", config.kv_cache_memory_bytes,
                 "Size of the KV pool (512M, 4G, ...); 0: a share of the free memory")
      ->group(kMemory)
      ->transform(as_bytes());
  app.add_option(
         "--gpu-memory-utilization,--device-memory-utilization,--memory-utilization", config.memory_utilization,
         "On a CPU: share of the memory left after the weights that the KV pool may take (0.5); on a card: share "
         "of its free memory for everything (0.9)")
      ->group(kMemory);
  add_choice(
      app, "--kv-cache-dtype", config.kv_cache_dtype,
      "auto (float16; float32 with F32 weights or float32 activations), float32, float16, bfloat16, fp8 (fp8_e4m3), "
      "fp8_e5m2 or int8: docs/kv_cache.md")
      ->group(kMemory)
      ->capture_default_str();
  app.add_option("--num-gpu-blocks-override", config.num_gpu_blocks_override,
                 "KV blocks, whatever the memory says; 0: off")
      ->group(kMemory);
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", config.enable_prefix_caching,
               "Keep the KV blocks of what was computed and share them with prompts that begin alike (on)")
      ->group(kMemory);
  app.add_option("--swap-space", config.swap_space, "GiB for the KV blocks of preempted requests; 0: none")
      ->group(kMemory)
      ->capture_default_str();
  app.add_option("--swap-file", config.swap_file, "A folder: the swap space lies in a file there, not in memory")
      ->group(kMemory);
  app.add_option("--kv-offloading-size", config.kv_offloading_size,
                 "GiB of host memory for blocks of the prefix cache that leave the pool; 0: none, 1 with "
                 "--kv-offload-dir (docs/offload.md)")
      ->group(kMemory)
      ->capture_default_str();
  app.add_option("--kv-offload-dir", config.kv_offload_dir,
                 "A folder where blocks of the prefix cache outlive the process")
      ->group(kMemory);
  app.add_option("--kv-offload-disk-size", config.kv_offload_disk_size, "GiB of files in that folder, at most")
      ->group(kMemory)
      ->capture_default_str();
  app.add_option("--kv-offload-disk-bandwidth", config.kv_offload_disk_bandwidth,
                 "MiB a second that are written there, at most; 0: no bound")
      ->group(kMemory)
      ->capture_default_str();
  app.add_option("--kv-offload-max-age", config.kv_offload_max_age,
                 "Seconds after which files there that nobody used are deleted; 0: never")
      ->group(kMemory)
      ->capture_default_str();
  add_choice(app, "--preemption-mode", config.preemption_mode,
             "What happens to a preempted request's KV blocks: recompute, swap, or auto (the quicker)")
      ->group(kMemory)
      ->capture_default_str();
}

void add_adapter_options(CLI::App& app, EngineConfig& config) {
  constexpr const char* kAdapters = "Adapters";
  const auto adapters = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->group(kAdapters)->capture_default_str();
  };
  app.add_flag("--enable-lora,!--no-enable-lora", config.enable_lora,
               "Requests may choose adapters (LoRA) of the model: docs/adapters.md")
      ->group(kAdapters);
  adapters("--max-loras", config.max_loras, "Different adapters in one step");
  adapters("--max-cpu-loras", config.max_cpu_loras, "Adapters in memory; 0: as many as in one step");
  adapters("--max-lora-rank", config.max_lora_rank, "The largest rank that an adapter may have");
  add_choice(app, "--lora-dtype", config.lora_dtype,
             "What adapters are held in: auto (as they are stored), float32 (float), float16 (half), bfloat16")
      ->group(kAdapters)
      ->capture_default_str();
  app.add_flag("--enable-prompt-adapter,!--no-enable-prompt-adapter", config.enable_prompt_adapter,
               "And soft prompts (prompt tuning), by the same flags and names")
      ->group(kAdapters);
  adapters("--max-prompt-adapters", config.max_prompt_adapters, "Different soft prompts in one step, and in memory");
  adapters("--max-prompt-adapter-token", config.max_prompt_adapter_token, "Tokens that a soft prompt may have");
  adapters("--lora-dir", config.lora_dir,
           "A folder: its adapters are loaded when a request names one, or an operator does; none from elsewhere");
}

void add_scheduling_options(CLI::App& app, EngineConfig& config) {
  constexpr const char* kScheduling = "Scheduling";
  const auto scheduling = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->group(kScheduling)->capture_default_str();
  };
  scheduling("--max-num-seqs", config.max_num_seqs, "Sequences computed at once");
  scheduling("--max-num-batched-tokens", config.max_num_batched_tokens,
             "Tokens computed in one step; 0: 512 on a CPU, 2048 on a card, and whole prompts where they are not cut")
      ->transform(as_whole_number());
  scheduling("--long-prefill-token-threshold", config.long_prefill_token_threshold,
             "Most prompt tokens of one request a step; 0: no bound of its own");
  scheduling("--max-num-partial-prefills", config.max_num_partial_prefills,
             "Prompts under way in portions at the same time");
  app.add_flag("--enable-chunked-prefill,!--no-enable-chunked-prefill", config.enable_chunked_prefill,
               "Long prompts are computed in parts, beside answers (on); off: each in one step, which must have room")
      ->group(kScheduling);
  add_choice(app, "--scheduling-policy", config.scheduling_policy,
             "fcfs, or priority (a request's \"priority\"; lower goes first)")
      ->group(kScheduling)
      ->capture_default_str();
  scheduling("--priority-ageing-tokens", config.priority_ageing_tokens,
             "Tokens of later work that a priority level may put before a request");
  scheduling("--watermark", config.watermark, "Share of the KV pool that stays free when requests are admitted");
  scheduling("--num-scheduler-steps", config.num_scheduler_steps, "Steps planned ahead of their results");
  app.add_flag("--async-scheduling,!--no-async-scheduling", config.async_scheduling,
               "Plan the next step while one is computed")
      ->group(kScheduling);
  scheduling("--max-num-queued-reqs", config.max_num_queued_reqs, "Requests that may wait; more are refused");
  scheduling("--max-num-queued-tokens", config.max_num_queued_tokens, "Prompt tokens that may wait; 0: no bound")
      ->transform(as_whole_number());
  scheduling("--request-timeout", config.request_timeout, "Seconds a request may take; 0: no bound");
}

void add_inspection_options(CLI::App& app, EngineConfig& config) {
  constexpr const char* kInspection = "Inspection";
  app.add_option("--flight-recorder-steps", config.flight_recorder_steps, "The last steps kept; 0: none")
      ->group(kInspection)
      ->capture_default_str();
  app.add_option("--trace-file", config.trace_file,
                 "Write what the scheduler is told and plans, for `quire replay` (holds the prompts' tokens)")
      ->group(kInspection);
}

void add_machine_options(CLI::App& app, EngineConfig& config) {
  constexpr const char* kMachine = "Machine";
  add_choice(app, "--load-format", config.load_format,
             "auto, or dummy: random weights of the model that config.json describes, to measure what it costs")
      ->group(kMachine)
      ->capture_default_str();
  add_choice(
      app, "--device", config.device,
      "auto (the first card, if there is one), cpu, cuda or cuda:N; several processes have a card each, from it on")
      ->group(kMachine)
      ->capture_default_str();
  app.add_flag("--batch-invariant", config.batch_invariant,
               "On a card: answers do not depend on the rest of the batch; prompts take longer (a CPU always does so)")
      ->group(kMachine);
  add_choice(app, "--attention-backend", config.attention_backend,
             "On a card: kernels of attention: auto, native (quire's own), flashinfer, or for prompts fa3 (Hopper)")
      ->group(kMachine)
      ->transform(
          CLI::Validator([](std::string& text) { return text = CLI::detail::to_lower(text), std::string(); }, ""))
      ->capture_default_str();
  app.add_flag("--enforce-eager,!--no-enforce-eager", config.enforce_eager,
               "On a card: record and replay no steps (no CUDA graphs)")
      ->group(kMachine);
  app.add_flag("--disable-custom-all-reduce,!--no-disable-custom-all-reduce", config.disable_custom_all_reduce,
               "Of several cards: NCCL adds up small messages too, no kernel that reads the other cards' memory")
      ->group(kMachine);
  app.add_option("--max-cudagraph-capture-size", config.max_cudagraph_capture_size,
                 "On a card: most tokens of a recorded step (one a sequence that decodes); 0: 512")
      ->group(kMachine)
      ->capture_default_str();
  app.add_option("--threads", config.threads, "Compute threads; 0: one a core")->group(kMachine)->capture_default_str();
  add_choice(app, "--isa", config.isa, "Instruction set of the kernels: auto, portable, avx2, avx512")
      ->group(kMachine)
      ->capture_default_str();
  app.add_option("--cpu-affinity", config.cpu_affinity,
                 "Cores of the compute threads, one each (0-3,8); nothing: those that this process may use")
      ->group(kMachine);
}

void add_process_options(CLI::App& app, EngineConfig& config) {
  constexpr const char* kProcesses = "Processes";
  app.add_option("--tensor-parallel-size", config.tensor_parallel_size,
                 "Processes that each hold a part of every weight and compute it, on cores or a card of their own")
      ->group(kProcesses)
      ->capture_default_str();
  app.add_flag("--enable-expert-parallel,!--no-enable-expert-parallel", config.enable_expert_parallel,
               "Of a mixture of experts each of these processes has some experts, in place of a part of each")
      ->group(kProcesses);
  app.add_option("--pipeline-parallel-size", config.pipeline_parallel_size,
                 "Stages of such processes, each with some of the layers")
      ->group(kProcesses)
      ->capture_default_str();
  app.add_option(
         "--data-parallel-size", config.data_parallel_size,
         "Engines with all of the model each, behind one front: a request goes where its beginning is cached, or "
         "where there is least to do")
      ->group(kProcesses)
      ->capture_default_str();
  add_choice(
      app, "--distributed-executor-backend", config.distributed_executor_backend,
      "Where the model is computed: uni (in this process), mp (in processes of its own), mpi (in those that mpirun "
      "or srun has started), ray (in those that a Ray cluster starts); auto: mp for several")
      ->group(kProcesses)
      ->capture_default_str();
  app.add_option("--max-restarts", config.max_restarts,
                 "How often within --restart-window the processes of mp are started again after one has failed")
      ->group(kProcesses)
      ->capture_default_str();
  app.add_option("--restart-window", config.restart_window, "Seconds")->group(kProcesses)->capture_default_str();
  app.add_flag("--numa-bind,!--no-numa-bind", config.numa_bind,
               "These processes take no memory but that of their cores' NUMA nodes; without it they prefer it")
      ->group(kProcesses);
}

}  // namespace

void add_engine_options(CLI::App& app, EngineConfig& config) {
  // The order is the help's.
  add_model_options(app, config);
  add_pooling_options(app, config);
  add_memory_options(app, config);
  add_adapter_options(app, config);
  add_scheduling_options(app, config);
  add_speculative_options(app, config);
  add_inspection_options(app, config);
  add_machine_options(app, config);
  add_process_options(app, config);
}

void add_sampling_options(CLI::App& app, SamplingParams& params) {
  const auto sampling = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->group("Sampling")->capture_default_str();
  };
  sampling("--max-tokens", params.max_tokens, "Most tokens of an answer");
  sampling("--min-tokens", params.min_tokens, "Fewest tokens of an answer");
  sampling("--temperature", params.temperature, "0: always the likeliest token");
  sampling("--top-p", params.top_p, "Keep the likeliest tokens of this mass");
  sampling("--top-k", params.top_k, "Keep so many of the likeliest tokens; 0: all");
  sampling("--min-p", params.min_p, "Drop tokens under this share of the likeliest");
  sampling("--typical-p", params.typical_p, "Keep the most typical tokens of this mass");
  sampling("--top-n-sigma", params.top_n_sigma, "Keep logits within so many deviations of the largest; 0: all");
  sampling("--repetition-penalty", params.repetition_penalty, "Over 1: fewer repeats");
  sampling("--presence-penalty", params.presence_penalty, "Over 0: new tokens");
  sampling("--frequency-penalty", params.frequency_penalty, "Over 0: rarer tokens");
  sampling("--dry-multiplier", params.dry_multiplier, "Over 0: against repeated runs (DRY)");
  sampling("--xtc-probability", params.xtc_probability, "How often the likeliest choices are left out (XTC)");
  sampling("--xtc-threshold", params.xtc_threshold, "Probability from which XTC leaves out");
  sampling("--dynatemp-range", params.dynatemp_range, "Temperature moves by so much with the entropy");
  sampling("--mirostat", params.mirostat, "0, 1 or 2: instead of the filters");
  sampling("--mirostat-tau", params.mirostat_tau, "Mirostat's target surprise, bits");
  sampling("--mirostat-eta", params.mirostat_eta, "Mirostat's learning rate");
  app.add_option("--stop", params.stop, "End the answer before this text; may be repeated")->group("Sampling");
  app.add_option("--bad-words", params.bad_words, "Never say this; may be repeated")->group("Sampling");
  app.add_flag("--ignore-eos", params.ignore_eos, "Go on after the model's own end")->group("Sampling");
}

Result<std::string> apply_chat_sampling(const CLI::App& command, const TextSource& text, SamplingParams& params) {
  QUIRE_ASSIGN_OR_RETURN(const server::SamplingDefaults advised,
                         server::read_sampling_defaults(text.generation_config, ""));
  const server::ChatSampling chat = server::chat_sampling(advised, text.chat_template);
  server::SamplingDefaults used = chat.values;
  // A flag goes before what is advised.
  const auto unless_given = [&command](const char* flag, auto& value) {
    if (command.count(flag) > 0) value.reset();
  };
  unless_given("--temperature", used.temperature);
  unless_given("--top-p", used.top_p);
  unless_given("--top-k", used.top_k);
  unless_given("--min-p", used.min_p);
  unless_given("--repetition-penalty", used.repetition_penalty);
  unless_given("--max-tokens", used.max_new_tokens);
  server::apply_defaults(used, params);
  if (used.max_new_tokens) params.max_tokens = used.max_new_tokens;
  const std::string shown = server::to_string(used);
  return shown.empty() ? "as the flags say" : fmt::format("{} ({})", shown, chat.source);
}

void tell_chat_sampling(CLI::App& command, const char* when) {
  for (const char* flag : {"--temperature", "--top-p", "--top-k", "--min-p", "--repetition-penalty"}) {
    command.get_option(flag)->default_str(when);
  }
}

int fail(const Status& status) {
  std::fprintf(stderr, "quire: %s\n", status.message().c_str());
  return kExitError;
}

int exit_code_of(const Status& status) {
  return status.ok() ? kExitOk : fail(status);
}

}  // namespace quire::cli
