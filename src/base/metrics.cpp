#include "base/metrics.h"

#include <map>
#include <mutex>

#include <fmt/format.h>
#include <prometheus/check_names.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "base/check.h"

namespace quire {
namespace {

class PrometheusCounter final : public Counter {
 public:
  explicit PrometheusCounter(prometheus::Counter& counter) : counter_(counter) {}
  void increment(double by) override { counter_.Increment(by); }
  double value() const override { return counter_.Value(); }

 private:
  prometheus::Counter& counter_;
};

class PrometheusGauge final : public Gauge {
 public:
  explicit PrometheusGauge(prometheus::Gauge& gauge) : gauge_(gauge) {}
  void set(double value) override { gauge_.Set(value); }
  void increment(double by) override { gauge_.Increment(by); }
  double value() const override { return gauge_.Value(); }
  prometheus::Gauge& gauge() { return gauge_; }

 private:
  prometheus::Gauge& gauge_;
};

class PrometheusHistogram final : public Histogram {
 public:
  explicit PrometheusHistogram(prometheus::Histogram& histogram) : histogram_(histogram) {}
  void observe(double value) override { histogram_.Observe(value); }

 private:
  prometheus::Histogram& histogram_;
};

enum class Kind { kCounter, kGauge, kHistogram };

using Key = std::pair<std::string, prometheus::Labels>;

prometheus::Labels to_labels(const std::string& name, const MetricLabels& labels) {
  prometheus::Labels sorted;
  for (const auto& [label, value] : labels) {
    QUIRE_CHECK_MSG(prometheus::CheckLabelName(label), fmt::format("metric {}: label name \"{}\"", name, label));
    QUIRE_CHECK_MSG(sorted.emplace(label, value).second, fmt::format("metric {}: label {} twice", name, label));
  }
  return sorted;
}

}  // namespace

struct Metrics::State {
  std::mutex mutex;
  prometheus::Registry registry;
  std::map<std::string, Kind> kinds;
  std::map<Key, std::unique_ptr<Counter>> counters;
  std::map<Key, std::unique_ptr<Gauge>> gauges;
  std::map<Key, std::unique_ptr<Histogram>> histograms;

  void check_name(const std::string& name, Kind kind) {
    QUIRE_CHECK_MSG(prometheus::CheckMetricName(name), fmt::format("metric name \"{}\"", name));
    QUIRE_CHECK_MSG(kinds.try_emplace(name, kind).first->second == kind,
                    fmt::format("metric {} exists with another kind", name));
  }
};

Metrics::Metrics() : state_(std::make_unique<State>()) {}
Metrics::~Metrics() = default;

Counter& Metrics::counter(const std::string& name, const std::string& help, const MetricLabels& labels) {
  const std::lock_guard lock(state_->mutex);
  state_->check_name(name, Kind::kCounter);
  const Key key{name, to_labels(name, labels)};
  std::unique_ptr<Counter>& metric = state_->counters[key];
  if (!metric) {
    auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(state_->registry);
    metric = std::make_unique<PrometheusCounter>(family.Add(key.second));
  }
  return *metric;
}

Gauge& Metrics::gauge(const std::string& name, const std::string& help, const MetricLabels& labels) {
  const std::lock_guard lock(state_->mutex);
  state_->check_name(name, Kind::kGauge);
  const Key key{name, to_labels(name, labels)};
  std::unique_ptr<Gauge>& metric = state_->gauges[key];
  if (!metric) {
    auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(state_->registry);
    metric = std::make_unique<PrometheusGauge>(family.Add(key.second));
  }
  return *metric;
}

void Metrics::remove_gauge(const std::string& name, const MetricLabels& labels) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->gauges.find({name, to_labels(name, labels)});
  if (found == state_->gauges.end()) return;
  auto& family = prometheus::BuildGauge().Name(name).Register(state_->registry);
  family.Remove(&static_cast<PrometheusGauge&>(*found->second).gauge());
  state_->gauges.erase(found);
}

Histogram& Metrics::histogram(const std::string& name, const std::string& help, const std::vector<double>& buckets,
                              const MetricLabels& labels) {
  const std::lock_guard lock(state_->mutex);
  state_->check_name(name, Kind::kHistogram);
  for (size_t i = 1; i < buckets.size(); ++i) {
    QUIRE_CHECK_MSG(buckets[i - 1] < buckets[i],
                    fmt::format("metric {}: bucket {} follows {}", name, buckets[i], buckets[i - 1]));
  }
  const Key key{name, to_labels(name, labels)};
  std::unique_ptr<Histogram>& metric = state_->histograms[key];
  if (!metric) {
    auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(state_->registry);
    metric = std::make_unique<PrometheusHistogram>(family.Add(key.second, buckets));
  }
  return *metric;
}

std::string Metrics::text() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

}  // namespace quire
