#include "megatron/train/metrics/jsonl_writer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "megatron/base/file_identity.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/metrics/metric_table.h"
#include "megatron/train/metrics/step_values.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kRecordStart = "{\"iteration\":";
constexpr size_t kMostKept = 65536;
constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr size_t kLongestLine = size_t{64} << 20;

bool HasEvaluation(const Json& object, bool on_test_set) {
  return object.contains(EvaluationName(kLmLossName, on_test_set));
}

// JSON knows neither infinity nor NaN.
Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// A name that is not UTF-8 must not end a run.
std::string Line(const Json& object) {
  return object.dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/false,
                     Json::error_handler_t::replace) +
         "\n";
}

void Write(double value, const char* key, Json* object) { (*object)[key] = Number(value); }
void Write(int64_t value, const char* key, Json* object) { (*object)[key] = value; }
void Write(bool value, const char* key, Json* object) { (*object)[key] = value; }
template <typename T>
void Write(const std::optional<T>& value, const char* key, Json* object) {
  if (value) Write(*value, key, object);
}

double ReadNumber(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::numeric_limits<double>::quiet_NaN();
  return found->get<double>();
}

int64_t ReadInteger(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_number_integer() ? 0 : found->get<int64_t>();
}

// Sets a field from the value with its key. A field that may be unset stays so where there is none.
void Read(const Json& object, const char* key, double* field) { *field = ReadNumber(object, key); }
void Read(const Json& object, const char* key, int64_t* field) {
  *field = ReadInteger(object, key);
}
void Read(const Json& object, const char* key, bool* field) {
  *field = object.contains(key) && object[key] == true;
}
template <typename T>
void Read(const Json& object, const char* key, std::optional<T>* field) {
  if (object.contains(key)) Read(object, key, &field->emplace());
}

StepMetrics ReadStep(const Json& object) {
  StepMetrics step;
  const auto read = [&object](const Metric& metric, auto& field) {
    Read(object, metric.key, &field);
  };
  VisitPosition(step, read);
  step.loss = ReadNumber(object, kLmLossName);
  for (const Metric& measure : ModelMeasures()) {
    if (measure.key != absl::string_view(kLmLossName) && object.contains(measure.key))
      step.others.push_back({measure.key, ReadNumber(object, measure.key)});
  }
  VisitValues(step, read);
  for (const auto& [key, value] : object.items()) {
    const absl::string_view source = SourceOf(key);
    if (!source.empty())
      step.sources.push_back({std::string(source), ReadNumber(object, key), /*is_loss=*/true});
    if (FindLayerMetric(key) != nullptr && !value.is_array())
      step.diagnostics.layers.push_back({key, ReadNumber(object, key)});
  }
  return step;
}

EvaluationMetrics ReadEvaluation(const Json& object, bool on_test_set) {
  EvaluationMetrics evaluation;
  evaluation.iteration = ReadInteger(object, metric::kIteration.key);
  evaluation.on_test_set = on_test_set;
  evaluation.loss = ReadNumber(object, EvaluationName(kLmLossName, on_test_set));
  for (const Metric& measure : ModelMeasures()) {
    const std::string key = EvaluationName(measure.key, on_test_set);
    if (measure.key != absl::string_view(kLmLossName) && object.contains(key))
      evaluation.others.push_back({measure.key, ReadNumber(object, key)});
  }
  for (const auto& [key, value] : object.items()) {
    const absl::string_view set = ValidationSetOf(key);
    if (!set.empty())
      evaluation.sets.push_back({std::string(set), ReadNumber(object, key), /*is_loss=*/true});
    const absl::string_view task = TaskMetricOf(key);
    if (!task.empty())
      evaluation.tasks.push_back({std::string(task), ReadNumber(object, key), /*is_loss=*/false});
  }
  return evaluation;
}

bool IsMetrics(const Json& object) {
  return object.is_object() && object.contains(metric::kIteration.key) &&
         object[metric::kIteration.key].is_number_integer() &&
         (object.contains(kLmLossName) || HasEvaluation(object, /*on_test_set=*/false) ||
          HasEvaluation(object, /*on_test_set=*/true));
}

// Returns whether `line`, without its line feed, is what a crash leaves of a record: a line that
// begins as records do and was cut somewhere, or one whose first bytes never reached the disk. Each
// failed write behind it may have left a brace (JsonlWriter::WriteKept).
bool MayBeTorn(absl::string_view line) {
  if (line.empty() || line.front() == '\0' || absl::StartsWith(line, kRecordStart)) return true;
  while (absl::ConsumeSuffix(&line, "{")) continue;
  return absl::StartsWith(kRecordStart, line);
}

absl::Status NotMetrics(int64_t line_number) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", line_number, " is not a record of metrics"));
}

// Returns the first line of a text, with its line feed if it has one. The text is not empty.
absl::string_view FirstLine(absl::string_view text) {
  return text.substr(0, std::min(text.find('\n'), text.size() - 1) + 1);
}

// Calls `visit(line, object)` if the line is a whole record. `line` includes its line feed. Returns
// whether to go on.
template <typename Visitor>
absl::StatusOr<bool> VisitLine(absl::string_view line, int64_t number, const Visitor& visit) {
  absl::string_view text = line;
  const bool ends = absl::ConsumeSuffix(&text, "\n");
  Json object(Json::value_t::discarded);
  if (ends) object = Json::parse(line, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (IsMetrics(object)) return visit(line, object);
  if (object.is_discarded() && MayBeTorn(text)) return true;
  return NotMetrics(number);
}

// Calls `visit(line, object)` for each whole record, and stops where it returns false.
template <typename Visitor>
absl::Status ForEachRecord(absl::string_view text, const Visitor& visit) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const absl::string_view line = FirstLine(text);
    MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, VisitLine(line, number, visit));
    if (!goes_on) return absl::OkStatus();
    text.remove_prefix(line.size());
  }
  return absl::OkStatus();
}

// Does the same with the records of a file, which may be larger than memory. `visit` also gets the
// place of the line's first byte.
template <typename Visitor>
absl::Status ForEachRecordIn(const RandomAccessFile& file, const Visitor& visit) {
  std::string text;
  int64_t number = 0, place = 0;
  const auto visit_there = [&](absl::string_view line, const Json& object) {
    return visit(place, line, object);
  };
  for (int64_t read = 0; read < file.size();) {
    const size_t before = text.size();
    const int64_t count = std::min(kPieceBytes, file.size() - read);
    text.resize(before + static_cast<size_t>(count));
    MEGATRON_RETURN_IF_ERROR(file.ReadAt(read, absl::MakeSpan(text).subspan(before)));
    read += count;
    const size_t feed = absl::string_view(text).substr(before).rfind('\n');
    absl::string_view lines = text;
    if (read < file.size())
      lines = lines.substr(0, feed == absl::string_view::npos ? 0 : before + feed + 1);
    const size_t whole = lines.size();
    while (!lines.empty()) {
      const absl::string_view line = FirstLine(lines);
      MEGATRON_ASSIGN_OR_RETURN(const bool goes_on, VisitLine(line, ++number, visit_there));
      if (!goes_on) return absl::OkStatus();
      place += static_cast<int64_t>(line.size());
      lines.remove_prefix(line.size());
    }
    text.erase(0, whole);
    if (text.size() > kLongestLine) return NotMetrics(number + 1);
  }
  return absl::OkStatus();
}

// Returns the records up to the first one after `last_iteration`.
absl::StatusOr<std::string> RecordsUpTo(absl::string_view text, int64_t last_iteration) {
  std::string records;
  MEGATRON_RETURN_IF_ERROR(ForEachRecord(text, [&](absl::string_view line, const Json& object) {
    if (ReadInteger(object, metric::kIteration.key) > last_iteration) return false;
    absl::StrAppend(&records, line);
    return true;
  }));
  return records;
}

int KindOf(const Json& object) {
  if (object.contains(kLmLossName)) return 0;
  return HasEvaluation(object, /*on_test_set=*/false) ? 1 : 2;
}

// Where a record stands among those of a run: by its iteration, then by what it is.
using Place = std::pair<int64_t, int>;

Place PlaceOf(const Json& object) {
  return {ReadInteger(object, metric::kIteration.key), KindOf(object)};
}

// The records by their places; of those in one place the first. They are parts of `text`.
std::map<Place, absl::string_view> ByPlace(absl::string_view text) {
  std::map<Place, absl::string_view> records;
  ForEachRecord(text, [&](absl::string_view line, const Json& object) {
    records.try_emplace(PlaceOf(object), line);
    return true;
  }).IgnoreError();
  return records;
}

// Returns the records in the order in which a run makes them, the first of those that are of one
// step or evaluation.
std::string InOrder(absl::string_view text) {
  std::string in_order;
  for (const auto& [place, line] : ByPlace(text)) absl::StrAppend(&in_order, line);
  return in_order;
}

// A part of what a file becomes: text, and behind it bytes [begin, end) of what the file is.
struct Part {
  std::string text;
  int64_t begin = 0;
  int64_t end = 0;
};

// Plans the records of `file`, where there is one, up to the first after `last_iteration`, with
// those of `others` that it lacks in their places.
absl::StatusOr<std::vector<Part>> PlanParts(const RandomAccessFile* file, int64_t last_iteration,
                                            absl::string_view others) {
  std::map<Place, absl::string_view> missing = ByPlace(others);
  std::set<Place> put;
  std::vector<Part> parts(1);
  const auto visit = [&](int64_t begin, absl::string_view line, const Json& object) {
    const Place place = PlaceOf(object);
    if (place.first > last_iteration) return false;
    if (put.count(place) > 0) return true;
    missing.erase(place);
    std::string before;
    for (; !missing.empty() && missing.begin()->first < place; missing.erase(missing.begin())) {
      absl::StrAppend(&before, missing.begin()->second);
      put.insert(missing.begin()->first);
    }
    if (!before.empty() || parts.back().end != begin)
      parts.push_back({std::move(before), begin, begin});
    parts.back().end = begin + static_cast<int64_t>(line.size());
    return true;
  };
  if (file != nullptr) {
    MEGATRON_RETURN_IF_ERROR(ForEachRecordIn(*file, visit));
  }
  std::string behind;
  for (const auto& [place, line] : missing) absl::StrAppend(&behind, line);
  parts.push_back({std::move(behind), 0, 0});
  return parts;
}

absl::Status WriteParts(const std::vector<Part>& parts, const RandomAccessFile* from,
                        WritableFile* to) {
  std::string piece;
  for (const Part& part : parts) {
    absl::StrAppend(&piece, part.text);
    for (int64_t read = part.begin; read < part.end;) {
      const size_t before = piece.size();
      const int64_t count = std::min(kPieceBytes, part.end - read);
      piece.resize(before + static_cast<size_t>(count));
      MEGATRON_RETURN_IF_ERROR(from->ReadAt(read, absl::MakeSpan(piece).subspan(before)));
      read += count;
      if (static_cast<int64_t>(piece.size()) < kPieceBytes) continue;
      MEGATRON_RETURN_IF_ERROR(to->Append(piece));
      piece.clear();
    }
  }
  return to->Append(piece);
}

}  // namespace

std::string ToJsonLine(const StepMetrics& step) {
  Json object;
  const auto write = [&object](const Metric& metric, const auto& field) {
    Write(field, metric.key, &object);
  };
  VisitPosition(step, write);
  object[kLmLossName] = Number(step.loss);
  for (const NamedValue& other : step.others) object[other.name] = Number(other.value);
  for (const NamedValue& source : step.sources)
    object[SourceLossName(source.name)] = Number(source.value);
  VisitValues(step, write);
  for (const LayerValue& value : step.diagnostics.layers) object[value.name] = Number(value.value);
  for (const ExpertLoad& load : step.diagnostics.experts)
    object[LayerMetricName(metric::kLayerExpertLoad, load.layer)] = load.choices;
  return Line(object);
}

std::string ToJsonLine(const EvaluationMetrics& evaluation) {
  Json object;
  object[metric::kIteration.key] = evaluation.iteration;
  const std::string loss = EvaluationName(kLmLossName, evaluation.on_test_set);
  object[loss] = Number(evaluation.loss);
  object[PerplexityName(loss)] = Number(Perplexity(evaluation.loss));
  for (const NamedValue& other : evaluation.others)
    object[EvaluationName(other.name, evaluation.on_test_set)] = Number(other.value);
  for (const NamedValue& set : evaluation.sets)
    object[ValidationSetName(set.name)] = Number(set.value);
  for (const NamedValue& task : evaluation.tasks)
    object[TaskMetricName(task.name)] = Number(task.value);
  return Line(object);
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
                                                               int64_t last_iteration,
                                                               const StepMetrics* last_step,
                                                               absl::string_view unwritten) {
  auto writer = absl::WrapUnique(new JsonlWriter(fs, path, last_iteration));
  const std::string missing =
      InOrder(absl::StrCat(unwritten, last_step == nullptr ? "" : ToJsonLine(*last_step)));
  MEGATRON_ASSIGN_OR_RETURN(const std::string before, RecordsUpTo(missing, last_iteration));
  writer->Keep(before);
  writer->opened_ = writer->WriteKept();
  if (absl::IsInvalidArgument(writer->opened_) || absl::IsFailedPrecondition(writer->opened_))
    return writer->opened_;
  return writer;
}

JsonlWriter::~JsonlWriter() {
  if (!kept_.empty()) WriteKept().IgnoreError();
}

std::string JsonlWriter::Unwritten() const { return absl::StrJoin(kept_, ""); }

void JsonlWriter::Keep(absl::string_view lines) {
  while (!lines.empty()) {
    const size_t size = lines.find('\n') + 1;
    kept_.emplace_back(lines.substr(0, size));
    lines.remove_prefix(size);
    if (kept_.size() > kMostKept) kept_.pop_front();
  }
}

absl::Status JsonlWriter::Rewrite() {
  const absl::StatusOr<std::unique_ptr<RandomAccessFile>> there = fs_.Open(path_);
  if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
  const RandomAccessFile* const old = there.ok() ? there->get() : nullptr;
  const absl::StatusOr<std::vector<Part>> parts = PlanParts(old, last_iteration_, Unwritten());
  if (absl::IsInvalidArgument(parts.status())) {
    MEGATRON_RETURN_IF_ERROR(
        parts.status(),
        _ << "in " << path_ << ": move it away, or name another with logging.metrics_file");
  }
  MEGATRON_RETURN_IF_ERROR(parts.status());
  const std::string replacement = absl::StrCat(path_, ".tmp");
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs_.Create(replacement));
  const std::optional<FileIdentity> identity = IdentityOf(replacement);
  absl::Status replaced = WriteParts(*parts, old, file.get());
  if (replaced.ok()) replaced = file->Sync();
  if (replaced.ok())
    replaced = fs_.Rename(replacement, path_);  // `file` stays open under its new name
  if (!replaced.ok()) {
    fs_.Remove(replacement).IgnoreError();
    return replaced;
  }
  MEGATRON_RETURN_IF_ERROR(fs_.SyncDir(ParentPath(path_)));
  file_ = std::move(file);
  identity_ = identity;
  torn_ = has_torn_line_ = false;
  kept_.clear();
  last_iteration_ = std::numeric_limits<int64_t>::max();
  return absl::OkStatus();
}

absl::Status JsonlWriter::Prepare() {
  if (file_ != nullptr) return absl::OkStatus();
  MEGATRON_RETURN_IF_ERROR(fs_.CreateDirs(ParentPath(path_)));
  return Rewrite();
}

absl::Status JsonlWriter::WriteStep(const StepMetrics& step) { return WriteLine(ToJsonLine(step)); }

absl::Status JsonlWriter::WriteEvaluation(const EvaluationMetrics& evaluation) {
  return WriteLine(ToJsonLine(evaluation));
}

absl::Status JsonlWriter::WriteLine(const std::string& line) {
  Keep(line);
  const absl::Status lost = LeaveLostFile();
  MEGATRON_RETURN_IF_ERROR(WriteKept());
  return lost;
}

// What is written to a file without a name is lost.
absl::Status JsonlWriter::LeaveLostFile() {
  if (file_ == nullptr) return absl::OkStatus();
  const bool is_removed = absl::IsNotFound(fs_.Stat(path_).status());
  const std::optional<FileIdentity> named = IdentityOf(path_);
  const bool is_replaced = identity_ && named && *named != *identity_;
  if (!is_removed && !is_replaced) return absl::OkStatus();
  file_ = nullptr;
  return absl::DataLossError(absl::StrCat(
      "'", path_, "' was ", is_removed ? "removed" : "replaced", " while the run wrote to it; ",
      is_removed ? "it begins anew" : "the run goes on in the file that has the name now"));
}

// The brace makes a torn line of all that a failed write may have left, also of a whole record
// whose line feed alone is missing, which would be there twice.
absl::Status JsonlWriter::WriteKept() {
  MEGATRON_RETURN_IF_ERROR(Prepare());
  for (; !kept_.empty(); kept_.pop_front()) {
    const std::string& line = kept_.front();
    const absl::Status written = file_->Append(torn_ ? absl::StrCat("{\n", line) : line);
    torn_ = !written.ok();
    has_torn_line_ |= torn_;
    MEGATRON_RETURN_IF_ERROR(written);
  }
  return absl::OkStatus();
}

absl::Status JsonlWriter::Sync() {
  const absl::Status lost = LeaveLostFile();
  MEGATRON_RETURN_IF_ERROR(WriteKept());
  if (has_torn_line_) {
    MEGATRON_RETURN_IF_ERROR(Rewrite());
  }
  MEGATRON_RETURN_IF_ERROR(file_->Sync());
  return lost;
}

}  // namespace megatron
