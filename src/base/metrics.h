// Counters, gauges and histograms of one engine or server, and their text for a Prometheus scrape.
// A registry is an object like any other, never global: several engines of one process each have
// their own.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace quire {

// Label names and values, in any order: {{"model_name", "smollm2"}}.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// The three kinds below are owned by their Metrics and live as long as it. Any thread may update
// them.

class Counter {
 public:
  virtual ~Counter() = default;
  virtual void increment(double by = 1.0) = 0;  // by >= 0; less has no effect
  virtual double value() const = 0;
};

class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void set(double value) = 0;
  virtual void increment(double by = 1.0) = 0;  // may be negative
  virtual double value() const = 0;
};

class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void observe(double value) = 0;
};

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The metric of this name and these labels, created at the first call: the same name, labels and
  // kind give the same object. Names are Prometheus' ([a-zA-Z_:][a-zA-Z0-9_:]*). A name that is
  // not, or that another kind has already, a label name that is not ([a-zA-Z_][a-zA-Z0-9_]*), or
  // buckets that do not rise are bugs of ours and end the process.
  Counter& counter(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Gauge& gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  // Ends the gauge of this name and these labels, if there is one. REQUIRES: nobody uses it any more.
  void remove_gauge(const std::string& name, const MetricLabels& labels);
  // buckets: upper bounds, rising, without the last one (+Inf), which is implied.
  Histogram& histogram(const std::string& name, const std::string& help, const std::vector<double>& buckets,
                       const MetricLabels& labels = {});

  // Everything in the text exposition format 0.0.4: "text/plain; version=0.0.4; charset=utf-8".
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
