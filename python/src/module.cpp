// quire._engine: what the package `quire` is written on. Whatever waits or computes does so without Python's lock.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>

#include "base/log.h"
#include "base/parse_json.h"
#include "c_api/read_json.h"
#include "channel.h"
#include "cli/backend.h"
#include "cli/log_format.h"
#include "engine/chat.h"
#include "engine_arguments.h"
#include "python_errors.h"
#include "server/sampling_defaults.h"
#include "to_python.h"
#include "without_gil.h"

namespace quire::python {
namespace {

namespace nb = nanobind;

constexpr std::chrono::milliseconds kBetweenSignals{50};  // Ctrl-C is looked for so often

void require_here(const OwnedEngine& engine) {
  if (!engine.elsewhere()) return;
  raise(
      PyExc_RuntimeError,
      "this engine belongs to the process that this one was forked from, and its threads are not here. Make the LLM in "
      "the process that uses it, or start processes by multiprocessing's \"spawn\" or \"forkserver\".");
}

// Work on a thread of its own, which Ctrl-C leaves behind: loading a model may take long.
template <typename T>
Result<T> on_another_thread(std::function<Result<T>()> work) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable bell;
    std::optional<Result<T>> result;  // guarded by mutex
  };
  const auto shared = std::make_shared<Shared>();
  std::thread([shared, work = std::move(work)] {
    Result<T> result = [&]() -> Result<T> {
      try {
        return work();
      } catch (const std::bad_alloc&) {
        return resource_exhausted("out of memory");
      } catch (const std::exception& error) {
        return internal_error("{}", error.what());
      }
    }();
    const std::lock_guard lock(shared->mutex);
    shared->result.emplace(std::move(result));
    shared->bell.notify_all();
  }).detach();
  while (true) {
    {
      const WithoutGil released;
      std::unique_lock lock(shared->mutex);
      if (shared->bell.wait_for(lock, kBetweenSignals, [&] { return shared->result.has_value(); })) break;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();  // what the thread still makes goes with it
  }
  return std::move(*shared->result);
}

struct Made {
  std::unique_ptr<engine::Engine> engine;
  std::vector<std::string> notes;
};

class PyEngine {
 public:
  PyEngine(const std::string& model, const Arguments& arguments, const std::string& program) {
    const std::string unknown = unknown_name(arguments);
    if (!unknown.empty()) raise(PyExc_TypeError, "LLM() got an unexpected keyword argument '" + unknown + "'");
    Made made = value_or_raise(on_another_thread<Made>([model, arguments, program]() -> Result<Made> {
      Made one;
      QUIRE_ASSIGN_OR_RETURN(const EngineConfig config, read_arguments(model, arguments, one.notes));
      QUIRE_ASSIGN_OR_RETURN(one.engine, cli::make_engine(config, Drive::kOwnThread, {.program = program}));
      return one;
    }));
    owned_ = std::make_shared<OwnedEngine>(std::make_unique<LLM>(std::move(made.engine)));
    notes_ = std::move(made.notes);
  }
  ~PyEngine() { close(); }

  void close() {
    if (owned_ == nullptr) return;
    std::shared_ptr<OwnedEngine> last = std::move(owned_);
    if (last->elsewhere()) return;
    const WithoutGil released;
    last->engine->stop();
    last.reset();
  }
  bool closed() const { return owned_ == nullptr; }

  // Kept by the caller while it is used: another thread may close().
  std::shared_ptr<OwnedEngine> owned() const {
    if (owned_ == nullptr) raise(PyExc_RuntimeError, "this engine was shut down; make another LLM.");
    require_here(*owned_);
    return owned_;
  }

  const text::Tokenizer& tokenizer(const OwnedEngine& owned) const {
    if (owned.engine->tokenizer() == nullptr) {
      raise(PyExc_ValueError,
            "there is no tokenizer: the engine was made with skip_tokenizer_init, or the model has none.");
    }
    return *owned.engine->tokenizer();
  }

  std::vector<TokenId> encode(const std::string& text, bool add_special_tokens) const {
    const auto kept = owned();
    const text::Tokenizer& with = tokenizer(*kept);
    const WithoutGil released;
    return with.encode(text, add_special_tokens);
  }
  nb::str decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const {
    const auto kept = owned();
    return to_text(tokenizer(*kept).decode(ids, skip_special_tokens));
  }

  std::pair<nb::str, std::vector<TokenId>> render_chat(const std::string& messages, const std::string& variables,
                                                       bool add_generation_prompt, bool continue_final_message,
                                                       const std::string& chat_template) const {
    const auto kept = owned();
    const auto rendered = [&]() -> Result<engine::ChatPrompt> {
      const WithoutGil released;
      boost::system::error_code error;
      const boost::json::value list = parse_json(messages, error);
      if (error || !list.is_array()) {
        return invalid_argument("messages must be a list of {{\"role\", \"content\"}}").with_param("messages");
      }
      engine::ChatOptions options{.add_generation_prompt = add_generation_prompt,
                                  .continue_final_message = continue_final_message,
                                  .chat_template = chat_template};
      const boost::json::value more = parse_json(variables, error);
      if (error || !more.is_object()) return invalid_argument("chat_template_kwargs must be a dict of JSON's kinds");
      options.variables = more.get_object();
      return engine::render_chat(*kept->engine, list.get_array(), options);
    }();
    const engine::ChatPrompt prompt = value_or_raise(rendered);
    return {to_text(prompt.text), prompt.ids};
  }

  Params prepare(const std::string& sampling) const {
    const auto kept = owned();
    const auto prepared = [&]() -> Result<Params> {
      const WithoutGil released;
      SamplingParams params;
      QUIRE_RETURN_IF_ERROR(c_api::read_sampling(sampling, params));
      const int32_t sequences = params.num_sequences();
      QUIRE_ASSIGN_OR_RETURN(auto shared, engine::Completion::prepare(*kept->engine, std::move(params)));
      return Params{std::move(shared), sequences};
    }();
    return value_or_raise(prepared);
  }

  // What generation_config.json advises, as JSON.
  std::string default_sampling() const {
    const auto kept = owned();
    const auto advised = value_or_raise(server::read_sampling_defaults(kept->engine->text().generation_config, ""));
    boost::json::object values = server::to_json(advised);
    if (advised.max_new_tokens) values["max_tokens"] = *advised.max_new_tokens;
    return boost::json::serialize(values);
  }

  const std::vector<std::string>& notes() const { return notes_; }

  // What vLLM's poolings are asked with: vectors [texts][numbers], each with its text's token ids.
  nb::list embed(const std::vector<Prompt>& prompts, const PoolingOptions& options, bool arrays) const {
    const auto outputs = value_or_raise(on_another_thread<std::vector<EmbeddingOutput>>(
        [kept = owned(), prompts, options] { return kept->llm->embed(prompts, options); }));
    nb::list list;
    for (const EmbeddingOutput& one : outputs) {
      list.append(nb::make_tuple(one.prompt_token_ids, to_numbers(one.embedding, arrays)));
    }
    return list;
  }
  nb::list classify(const std::vector<Prompt>& prompts, const PoolingOptions& options, bool arrays) const {
    const auto outputs = value_or_raise(on_another_thread<std::vector<ClassificationOutput>>(
        [kept = owned(), prompts, options] { return kept->llm->classify(prompts, options); }));
    nb::list list;
    for (const ClassificationOutput& one : outputs) {
      list.append(nb::make_tuple(one.prompt_token_ids, to_numbers(one.probabilities, arrays), one.label));
    }
    return list;
  }
  std::vector<float> score(const std::vector<std::pair<std::string, std::string>>& pairs,
                           const PoolingOptions& options) const {
    return value_or_raise(on_another_thread<std::vector<float>>(
        [kept = owned(), pairs, options] { return kept->llm->score(pairs, options); }));
  }

  // Makes an adapter known by its name, if it is not yet.
  void use_adapter(const std::string& name, const std::string& path) const {
    const auto kept = owned();
    if (path.empty() || kept->engine->knows_adapter(name)) return;
    const Status loaded = [&] {
      const WithoutGil released;
      return kept->llm->load_lora({name, path});
    }();
    if (!kept->engine->knows_adapter(name)) raise_unless_ok(loaded);  // another thread may have been quicker
  }

 private:
  std::shared_ptr<OwnedEngine> owned_;
  std::vector<std::string> notes_;
};

class PyChannel {
 public:
  PyChannel(const PyEngine& engine, bool whole, bool arrays)
      : channel_(std::make_shared<Channel>(engine.owned(), whole)), arrays_(arrays) {}

  std::shared_ptr<Channel> here() const {
    require_here(*channel_->owned());
    return channel_;
  }

  uint64_t submit(std::vector<TokenId> prompt, const Params& params, int32_t priority, const std::string& cache_salt,
                  double timeout, const std::string& adapter, bool wait) const {
    const auto channel = here();
    const auto submitted = [&] {
      const WithoutGil released;
      return channel->submit(std::move(prompt), params, {priority, cache_salt, timeout, adapter, wait});
    }();
    return value_or_raise(submitted);
  }

  nb::list take(double seconds) const {
    const auto channel = here();
    using Clock = std::chrono::steady_clock;
    const Clock::time_point until =
        Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9) * 1000));
    std::vector<Update> updates;
    while (true) {
      {
        const WithoutGil released;
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
        updates = channel->take(std::min(left, kBetweenSignals));
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!updates.empty() || Clock::now() >= until) break;
    }
    const text::Tokenizer* tokenizer = channel->owned()->engine->tokenizer();
    nb::list list;
    for (Update& update : updates) list.append(to_tuple(std::move(update), tokenizer, arrays_));
    return list;
  }

  bool cancel(uint64_t number) const {
    const auto channel = here();
    const WithoutGil released;
    return channel->cancel(number);
  }

 private:
  std::shared_ptr<Channel> channel_;
  const bool arrays_;
};

// As the engine will, as far as that does not depend on the model.
void check_sampling(const std::string& sampling) {
  SamplingParams params;
  raise_unless_ok(c_api::read_sampling(sampling, params));
  constexpr auto kAny = std::numeric_limits<int32_t>::max();
  raise_unless_ok(validate(params, {.vocab_size = kAny,
                                    .max_logprobs = -1,
                                    .max_sequences = kAny,
                                    .max_bad_words = kAny,
                                    .max_dry_sequence_breakers = kAny}));
}

void set_level(const std::string& level) {
  if (!set_log_level(level)) {
    raise(PyExc_ValueError, "log level \"" + level + "\": expected debug, info, warning or error");
  }
}

NB_MODULE(_engine, module) {
  nb::set_leak_warnings(false);  // what lives until the process ends is ended by quire.LLM's finalizer
  cli::log_to_standard_error();
  set_log_level("warning");

  module.doc() = "The engine underneath the package; use quire.LLM and quire.AsyncLLM.";
  module.attr("version") = QUIRE_VERSION;
  module.def("argument_names", &argument_names, "Names of LLM's keyword arguments.");
  module.def("check_sampling", &check_sampling, nb::arg("sampling"),
             "Raises ValueError where sampling parameters, as JSON, are wrong whatever the model.");
  module.def("set_log_level", &set_level, nb::arg("level"), "debug, info, warning or error");

  nb::class_<Params>(module, "Params", "Sampling parameters that an engine has checked and compiled.")
      .def_ro("num_sequences", &Params::num_sequences, "How many run at once for a request.");

  nb::class_<PoolingOptions>(module, "PoolingOptions", "How texts become vectors and scores.")
      .def(
          "__init__",
          [](PoolingOptions* self, int64_t dimensions, std::optional<bool> normalize, int64_t max_tokens,
             const std::string& prompt_name) {
            new (self) PoolingOptions{.dimensions = dimensions,
                                      .normalize = normalize,
                                      .max_tokens = max_tokens,
                                      .prompt_name = prompt_name,
                                      .progress = false};
          },
          nb::arg("dimensions"), nb::arg("normalize").none(), nb::arg("max_tokens"), nb::arg("prompt_name"));

  nb::class_<PyEngine>(module, "Engine", nb::is_weak_referenceable(), "A loaded model with its engine's thread.")
      .def(nb::init<const std::string&, const Arguments&, const std::string&>(), nb::arg("model"), nb::arg("arguments"),
           nb::arg("program"))
      .def("close", &PyEngine::close, "Ends every request and the engine's thread; again: nothing.")
      .def_prop_ro("closed", &PyEngine::closed)
      .def_prop_ro("notes", &PyEngine::notes, "What is to be said of arguments that change nothing here.")
      .def("encode", &PyEngine::encode, nb::arg("text"), nb::arg("add_special_tokens"))
      .def("decode", &PyEngine::decode, nb::arg("ids"), nb::arg("skip_special_tokens"))
      .def("render_chat", &PyEngine::render_chat, nb::arg("messages"), nb::arg("variables"),
           nb::arg("add_generation_prompt"), nb::arg("continue_final_message"), nb::arg("chat_template"))
      .def("embed", &PyEngine::embed, nb::arg("prompts"), nb::arg("options"), nb::arg("arrays"))
      .def("classify", &PyEngine::classify, nb::arg("prompts"), nb::arg("options"), nb::arg("arrays"))
      .def("score", &PyEngine::score, nb::arg("pairs"), nb::arg("options"))
      .def("use_adapter", &PyEngine::use_adapter, nb::arg("name"), nb::arg("path"))
      .def(
          "unload_adapter",
          [](const PyEngine& self, const std::string& name) { raise_unless_ok(self.owned()->llm->unload_lora(name)); },
          nb::arg("name"))
      .def("prepare", &PyEngine::prepare, nb::arg("sampling"))
      .def("default_sampling", &PyEngine::default_sampling, "As JSON, what the model's makers advise.")
      .def_prop_ro("has_tokenizer", [](const PyEngine& self) { return self.owned()->engine->tokenizer() != nullptr; })
      .def_prop_ro("max_model_len", [](const PyEngine& self) { return self.owned()->engine->max_model_len(); })
      .def_prop_ro("max_num_seqs", [](const PyEngine& self) { return self.owned()->engine->config().max_num_seqs; })
      .def_prop_ro("vocab_size", [](const PyEngine& self) { return self.owned()->engine->model().vocab_size; })
      .def_prop_ro("healthy", [](const PyEngine& self) { return self.owned()->engine->healthy(); })
      .def_prop_ro("bos_token_id",
                   [](const PyEngine& self) {
                     const auto kept = self.owned();
                     return self.tokenizer(*kept).bos_id();
                   })
      .def_prop_ro("eos_token_ids",
                   [](const PyEngine& self) {
                     const auto kept = self.owned();
                     return self.tokenizer(*kept).eos_ids();
                   })
      .def("reset_prefix_cache", [](const PyEngine& self) { self.owned()->engine->reset_prefix_cache(); })
      .def(
          "metrics", [](const PyEngine& self) { return self.owned()->engine->metrics().text(); },
          "In Prometheus' text format.");

  nb::class_<PyChannel>(module, "Channel", "The requests of one consumer; one thread at a time takes.")
      .def(nb::init<const PyEngine&, bool, bool>(), nb::arg("engine"), nb::arg("whole"), nb::arg("arrays"))
      .def("submit", &PyChannel::submit, nb::arg("prompt"), nb::arg("params"), nb::arg("priority"),
           nb::arg("cache_salt"), nb::arg("timeout"), nb::arg("adapter"), nb::arg("wait"))
      .def("take", &PyChannel::take, nb::arg("seconds"))
      .def("cancel", &PyChannel::cancel, nb::arg("number"))
      .def("fileno", [](const PyChannel& self) { return value_or_raise(self.here()->descriptor()); })
      .def_prop_ro("num_tokens", [](const PyChannel& self) { return self.here()->num_tokens(); })
      .def("__len__", [](const PyChannel& self) { return self.here()->size(); });
}

}  // namespace
}  // namespace quire::python
