#include "megatron/train/metrics/prometheus_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

// A scrape comes every 15 s or less often.
constexpr absl::Duration kFilePeriod = absl::Seconds(5);
constexpr int kPauseFactor = 10;
constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";

// Replaces the file at once for its readers. It need not outlive a crash of the machine, and what
// is durable takes long on a busy disk.
absl::Status ReplaceForReaders(FileSystem& fs, const std::string& path, absl::string_view text) {
  MEGATRON_RETURN_IF_ERROR(CheckReplaceable(fs, path));
  const std::string unfinished = path + ".tmp";  // the collector reads *.prom alone
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, fs.Create(unfinished));
  absl::Status status = file->Append(text);
  status.Update(file->Close());
  if (status.ok()) status = fs.Rename(unfinished, path);
  if (!status.ok()) fs.Remove(unfinished).IgnoreError();
  return status;
}

}  // namespace

PrometheusWriter::PrometheusWriter(FileSystem& fs, PrometheusOptions options, const RunStart& start,
                                   std::function<absl::Time()> now)
    : fs_(fs),
      options_(std::move(options)),
      now_(std::move(now)),
      page_(start.run_id, absl::Now()),
      last_progress_(now_()),
      iteration_(start.last_iteration) {}

PrometheusWriter::~PrometheusWriter() {
  if (has_file_) fs_.Remove(options_.textfile).IgnoreError();
}

absl::StatusOr<std::string> PrometheusWriter::Listen(int port) {
  http::ServerOptions options;
  options.listen.port = port;
  MEGATRON_ASSIGN_OR_RETURN(
      server_,
      http::Server::Start(options, [this](const http::Request& request, const http::Client&) {
        return Answer(request);
      }));
  return absl::StrCat("http://", server_->endpoint().ToString());
}

void PrometheusWriter::NoteProgress() {
  const absl::Time now = now_();
  longest_pause_ = std::max(longest_pause_, now - last_progress_);
  last_progress_ = now;
}

absl::Status PrometheusWriter::WriteStep(const StepMetrics& step) {
  {
    absl::MutexLock lock(&mutex_);
    page_.SetStep(step);
    iteration_ = step.iteration;
    NoteProgress();
  }
  return ReplaceFile(/*at_once=*/false);
}

absl::Status PrometheusWriter::WriteEvaluation(const EvaluationMetrics& evaluation) {
  {
    absl::MutexLock lock(&mutex_);
    page_.SetEvaluation(evaluation);
    NoteProgress();
  }
  return ReplaceFile(/*at_once=*/false);
}

absl::Status PrometheusWriter::WriteEvent(const RunEvent& event) {
  {
    absl::MutexLock lock(&mutex_);
    page_.SetEvent(event);
    NoteProgress();
  }
  return ReplaceFile(/*at_once=*/true);
}

absl::Status PrometheusWriter::ReplaceFile(bool at_once) {
  if (options_.textfile.empty()) return absl::OkStatus();
  const absl::Time now = now_();
  if (!at_once && now < next_file_) return absl::OkStatus();
  next_file_ = now + kFilePeriod;
  std::string text;
  {
    absl::MutexLock lock(&mutex_);
    text = page_.Text();
  }
  const absl::Status status = ReplaceForReaders(fs_, options_.textfile, text);
  has_file_ |= status.ok();
  return status;
}

http::Response PrometheusWriter::Health() const {
  absl::MutexLock lock(&mutex_);
  const absl::Duration pause = now_() - last_progress_;
  const absl::Duration limit = std::max(options_.silence_limit, kPauseFactor * longest_pause_);
  http::Response response;
  response.status = pause <= limit ? 200 : 503;
  response.content_type = "application/json";
  response.body = absl::StrFormat(
      "{\"healthy\": %s, \"iteration\": %d, \"seconds_since_progress\": %.1f, \"limit_seconds\": "
      "%.1f}\n",
      pause <= limit ? "true" : "false", iteration_, absl::ToDoubleSeconds(pause),
      absl::ToDoubleSeconds(limit));
  return response;
}

http::Response PrometheusWriter::Answer(const http::Request& request) const {
  const bool known = request.path == "/metrics" || request.path == "/healthz";
  if (!known) return http::ErrorResponse(404, "there are /metrics and /healthz");
  if (request.method != "GET" && request.method != "HEAD") {
    http::Response refused = http::ErrorResponse(405, "only GET and HEAD are answered");
    refused.fields = {{"Allow", "GET, HEAD"}};
    return refused;
  }
  if (request.path == "/healthz") return Health();
  http::Response response;
  response.content_type = kTextFormat;
  absl::MutexLock lock(&mutex_);
  response.body = page_.Text();
  return response;
}

}  // namespace megatron
