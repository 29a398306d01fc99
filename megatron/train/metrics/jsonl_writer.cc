#include "megatron/train/metrics/jsonl_writer.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kIteration[] = "iteration";
constexpr char kConsumed[] = "consumed_samples";
constexpr char kLearningRate[] = "learning-rate";
constexpr char kGradNorm[] = "grad-norm";
constexpr char kParamsNorm[] = "params-norm";
constexpr char kNumZeros[] = "num-zeros";
constexpr char kLossScale[] = "loss-scale";
constexpr char kBatchSize[] = "batch-size";
constexpr char kSkipped[] = "skipped";
constexpr char kElapsed[] = "elapsed_ms";
constexpr char kTokens[] = "tokens_per_second";
constexpr char kTflops[] = "tflops";
constexpr char kMfu[] = "mfu";
constexpr absl::string_view kRecordStart = "{\"iteration\":";

// Returns the key of a measure of an evaluation.
std::string EvaluationKey(absl::string_view measure, bool on_test_set) {
  return absl::StrCat(measure, on_test_set ? " test" : " validation");
}

bool HasEvaluation(const Json& object, bool on_test_set) {
  return object.contains(EvaluationKey(kLmLossName, on_test_set));
}

// JSON knows neither infinity nor NaN.
Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double ReadNumber(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::numeric_limits<double>::quiet_NaN();
  return found->get<double>();
}

int64_t ReadInteger(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_number_integer() ? 0 : found->get<int64_t>();
}

StepMetrics ReadStep(const Json& object) {
  StepMetrics step;
  step.iteration = ReadInteger(object, kIteration);
  step.consumed_samples = ReadInteger(object, kConsumed);
  step.loss = ReadNumber(object, kLmLossName);
  step.learning_rate = ReadNumber(object, kLearningRate);
  if (object.contains(kGradNorm)) step.grad_norm = ReadNumber(object, kGradNorm);
  if (object.contains(kParamsNorm)) step.params_norm = ReadNumber(object, kParamsNorm);
  if (object.contains(kNumZeros)) step.num_zeros = ReadInteger(object, kNumZeros);
  step.loss_scale = ReadNumber(object, kLossScale);
  step.global_batch_size = ReadInteger(object, kBatchSize);
  step.skipped = object.contains(kSkipped) && object[kSkipped] == true;
  step.speed.elapsed_ms = ReadNumber(object, kElapsed);
  step.speed.tokens_per_second = ReadNumber(object, kTokens);
  step.speed.model_tflops = ReadNumber(object, kTflops);
  if (object.contains(kMfu)) step.speed.mfu = ReadNumber(object, kMfu);
  return step;
}

EvaluationMetrics ReadEvaluation(const Json& object, bool on_test_set) {
  EvaluationMetrics evaluation;
  evaluation.iteration = ReadInteger(object, kIteration);
  evaluation.on_test_set = on_test_set;
  evaluation.loss = ReadNumber(object, EvaluationKey(kLmLossName, on_test_set));
  return evaluation;
}

bool IsMetrics(const Json& object) {
  return object.is_object() && object.contains(kIteration) &&
         object[kIteration].is_number_integer() &&
         (object.contains(kLmLossName) || HasEvaluation(object, /*on_test_set=*/false) ||
          HasEvaluation(object, /*on_test_set=*/true));
}

// Returns whether `line`, without its line feed, is what a crash leaves of a record: a line that
// begins as records do and was cut somewhere, or one whose first bytes never reached the disk.
bool MayBeTorn(absl::string_view line) {
  return line.empty() || line.front() == '\0' || absl::StartsWith(line, kRecordStart) ||
         absl::StartsWith(kRecordStart, line);
}

absl::Status NotMetrics(int line_number) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", line_number, " is not a record of metrics"));
}

// Calls `visit(line, object)` for each whole record, and stops where it returns false. `line`
// includes its line feed.
template <typename Visitor>
absl::Status ForEachRecord(absl::string_view text, Visitor visit) {
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    if (end == absl::string_view::npos)
      return MayBeTorn(text) ? absl::OkStatus() : NotMetrics(number);
    const absl::string_view line = text.substr(0, end + 1);
    const Json object = Json::parse(line, /*cb=*/nullptr, /*allow_exceptions=*/false);
    if (IsMetrics(object)) {
      if (!visit(line, object)) return absl::OkStatus();
    } else if (!object.is_discarded() || !MayBeTorn(text.substr(0, end))) {
      return NotMetrics(number);
    }
    text.remove_prefix(line.size());
  }
  return absl::OkStatus();
}

// Returns the records up to the first one after `last_iteration`.
absl::StatusOr<std::string> RecordsUpTo(absl::string_view text, int64_t last_iteration) {
  std::string records;
  MEGATRON_RETURN_IF_ERROR(ForEachRecord(text, [&](absl::string_view line, const Json& object) {
    if (ReadInteger(object, kIteration) > last_iteration) return false;
    absl::StrAppend(&records, line);
    return true;
  }));
  return records;
}

absl::StatusOr<std::string> KeptRecords(FileSystem& fs, const std::string& path,
                                        int64_t last_iteration) {
  const absl::StatusOr<std::string> text = ReadFileToString(fs, path);
  if (absl::IsNotFound(text.status())) return std::string();
  MEGATRON_RETURN_IF_ERROR(text.status());
  MEGATRON_ASSIGN_OR_RETURN(
      std::string records, RecordsUpTo(*text, last_iteration),
      _ << "in " << path << ": move it away, or name another with logging.metrics_file");
  return records;
}

}  // namespace

std::string ToJsonLine(const StepMetrics& step) {
  Json object;
  object[kIteration] = step.iteration;
  object[kConsumed] = step.consumed_samples;
  object[kLmLossName] = Number(step.loss);
  for (const NamedValue& other : step.others) object[other.name] = Number(other.value);
  object[kLearningRate] = Number(step.learning_rate);
  if (step.grad_norm) object[kGradNorm] = Number(*step.grad_norm);
  if (step.params_norm) object[kParamsNorm] = Number(*step.params_norm);
  if (step.num_zeros) object[kNumZeros] = *step.num_zeros;
  object[kLossScale] = Number(step.loss_scale);
  object[kBatchSize] = step.global_batch_size;
  object[kSkipped] = step.skipped;
  object[kElapsed] = Number(step.speed.elapsed_ms);
  object[kTokens] = Number(step.speed.tokens_per_second);
  object[kTflops] = Number(step.speed.model_tflops);
  if (step.speed.mfu) object[kMfu] = Number(*step.speed.mfu);
  return object.dump() + "\n";
}

std::string ToJsonLine(const EvaluationMetrics& evaluation) {
  Json object;
  object[kIteration] = evaluation.iteration;
  const std::string loss = EvaluationKey(kLmLossName, evaluation.on_test_set);
  object[loss] = Number(evaluation.loss);
  object[loss + " ppl"] = Number(Perplexity(evaluation.loss));
  for (const NamedValue& other : evaluation.others)
    object[EvaluationKey(other.name, evaluation.on_test_set)] = Number(other.value);
  return object.dump() + "\n";
}

absl::StatusOr<MetricsHistory> ParseMetrics(absl::string_view text) {
  MetricsHistory history;
  MEGATRON_RETURN_IF_ERROR(ForEachRecord(text, [&](absl::string_view, const Json& object) {
    if (HasEvaluation(object, /*on_test_set=*/false)) {
      history.evaluations.push_back(ReadEvaluation(object, /*on_test_set=*/false));
    } else if (HasEvaluation(object, /*on_test_set=*/true)) {
      history.tests.push_back(ReadEvaluation(object, /*on_test_set=*/true));
    } else {
      history.steps.push_back(ReadStep(object));
    }
    return true;
  }));
  return history;
}

absl::StatusOr<std::unique_ptr<JsonlWriter>> JsonlWriter::Open(FileSystem& fs,
                                                               const std::string& path,
                                                               int64_t last_iteration) {
  const std::string directory = ParentPath(path);
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(directory));
  MEGATRON_ASSIGN_OR_RETURN(const std::string kept, KeptRecords(fs, path, last_iteration));
  const std::string replacement = absl::StrCat(path, ".tmp");
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs.Create(replacement));
  MEGATRON_RETURN_IF_ERROR(file->Append(kept));
  MEGATRON_RETURN_IF_ERROR(file->Sync());
  MEGATRON_RETURN_IF_ERROR(fs.Rename(replacement, path));  // `file` stays open under its new name
  MEGATRON_RETURN_IF_ERROR(fs.SyncDir(directory));
  return absl::WrapUnique(new JsonlWriter(std::move(file)));
}

absl::Status JsonlWriter::WriteStep(const StepMetrics& step) { return WriteLine(ToJsonLine(step)); }

absl::Status JsonlWriter::WriteEvaluation(const EvaluationMetrics& evaluation) {
  return WriteLine(ToJsonLine(evaluation));
}

absl::Status JsonlWriter::WriteLine(absl::string_view line) {
  const absl::Status written = file_->Append(torn_ ? absl::StrCat("\n", line) : std::string(line));
  torn_ = !written.ok();
  return written;
}

absl::Status JsonlWriter::Sync() { return file_->Sync(); }

}  // namespace megatron
