#include "megatron/serve/serve_metrics.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace megatron::serve {
namespace {

void AppendHead(absl::string_view name, absl::string_view type, absl::string_view help,
                std::string* page) {
  absl::StrAppend(page, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

}  // namespace

void ServeMetrics::CountAnswer(const std::string& path, int status) {
  absl::MutexLock lock(&mutex_);
  ++answers_[{path, status}];
}

void ServeMetrics::Add(absl::Duration time, Histogram* histogram) {
  const double seconds = absl::ToDoubleSeconds(time);
  for (size_t i = 0; i < kSeconds.size(); ++i) histogram->counts[i] += seconds <= kSeconds[i];
  ++histogram->count;
  histogram->sum += seconds;
}

void ServeMetrics::CountFirstToken(absl::Duration time) {
  absl::MutexLock lock(&mutex_);
  Add(time, &first_token_);
}

void ServeMetrics::CountText(absl::Duration time) {
  absl::MutexLock lock(&mutex_);
  Add(time, &text_);
}

void ServeMetrics::Append(absl::string_view name, absl::string_view help,
                          const Histogram& histogram, std::string* page) {
  AppendHead(name, "histogram", help, page);
  for (size_t i = 0; i < kSeconds.size(); ++i) {
    absl::StrAppend(page, name, "_bucket{le=\"", kSeconds[i], "\"} ", histogram.counts[i], "\n");
  }
  // A StrAppend of a sum would keep six digits, and its growth in a minute may be behind them.
  absl::StrAppend(page, name, "_bucket{le=\"+Inf\"} ", histogram.count, "\n", name, "_sum ",
                  absl::StrFormat("%.15g", histogram.sum), "\n", name, "_count ", histogram.count,
                  "\n");
}

std::string ServeMetrics::Page(const EngineState& engine, const EngineLimits& limits) const {
  std::string page;
  const auto value = [&](absl::string_view name, absl::string_view type, absl::string_view help,
                         int64_t number) {
    AppendHead(name, type, help, &page);
    absl::StrAppend(&page, name, " ", number, "\n");
  };
  value("megatron_serve_running_requests", "gauge", "Texts that the model works on.",
        engine.running);
  value("megatron_serve_waiting_requests", "gauge", "Texts that wait for the model.",
        engine.waiting);
  value("megatron_serve_max_running_requests", "gauge", "Most texts that are worked on at once.",
        limits.max_batch);
  value("megatron_serve_max_waiting_requests", "gauge", "Most texts that may wait.",
        limits.max_queue);
  value("megatron_serve_prompt_tokens_total", "counter", "Tokens of prompts that the model read.",
        engine.prompt_tokens);
  value("megatron_serve_generated_tokens_total", "counter", "Tokens that the model wrote.",
        engine.generated_tokens);
  value("megatron_serve_finished_requests_total", "counter", "Texts that have ended.",
        engine.finished_requests);
  absl::MutexLock lock(&mutex_);
  constexpr absl::string_view kAnswers = "megatron_serve_answers_total";
  AppendHead(kAnswers, "counter", "Answers by path and status; 499: the client had gone.", &page);
  for (const auto& [key, count] : answers_) {
    absl::StrAppend(&page, kAnswers, "{path=\"", key.first, "\",status=\"", key.second, "\"} ",
                    count, "\n");
  }
  Append("megatron_serve_first_token_seconds", "Time from a request to its first token.",
         first_token_, &page);
  Append("megatron_serve_request_seconds",
         "Time from a request for texts to the end of its answer.", text_, &page);
  return page;
}

}  // namespace megatron::serve
