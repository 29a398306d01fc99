// Measures what Prometheus costs the rank that writes metrics: a step, an answer to a scrape, and
// the text file for node_exporter.

#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/http/request.h"
#include "megatron/http/response.h"
#include "megatron/train/metrics/full_step.h"
#include "megatron/train/metrics/prometheus_writer.h"

namespace megatron {
namespace {

void WriteStep(benchmark::State& state) {
  PrometheusWriter writer(PosixFileSystem(), {}, {});
  StepMetrics step = FullStep();
  for (auto _ : state) {
    ++step.iteration;
    CHECK_EQ(writer.WriteStep(step), absl::OkStatus());
  }
}
BENCHMARK(WriteStep);

void AnswerScrape(benchmark::State& state) {
  PrometheusWriter writer(PosixFileSystem(), {}, {});
  CHECK_EQ(writer.WriteStep(FullStep()), absl::OkStatus());
  http::Request request;
  request.method = "GET";
  request.path = "/metrics";
  size_t bytes = 0;
  for (auto _ : state) bytes = writer.Answer(request).body.size();
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(AnswerScrape);

// The clock goes on by the file's period with each step, so that each step replaces the file.
void ReplaceFile(benchmark::State& state) {
  const char* const temporary = std::getenv("TEST_TMPDIR");
  PrometheusOptions options;
  options.textfile =
      JoinPath(temporary == nullptr ? "/tmp" : temporary, "prometheus_writer_benchmark.prom");
  absl::Time now = absl::Now();
  PrometheusWriter writer(PosixFileSystem(), options, {}, [&] { return now; });
  const StepMetrics step = FullStep();
  for (auto _ : state) {
    now += absl::Seconds(5);
    CHECK_EQ(writer.WriteStep(step), absl::OkStatus());
  }
}
BENCHMARK(ReplaceFile);

}  // namespace
}  // namespace megatron
