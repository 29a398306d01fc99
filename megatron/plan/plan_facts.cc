#include "megatron/plan/plan_facts.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

// Keeps the first error.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text.empty()) text = absl::StrCat(line + 1, ":", column + 1, ": ", message);
  }
  void AddWarning(int, int, const std::string&) override {}

  std::string text;
};

std::string Plain(absl::string_view name) {
  std::string plain;
  for (char c : name) {
    if (absl::ascii_isalnum(c)) plain.push_back(absl::ascii_tolower(c));
  }
  return plain;
}

template <typename Entry>
bool IsAlias(const Entry& entry, const std::string& plain) {
  for (const std::string& alias : entry.alias()) {
    if (Plain(alias) == plain) return true;
  }
  return false;
}
bool IsAlias(const Implementation&, const std::string&) { return false; }

template <typename Entries>
auto Find(const Entries& entries, absl::string_view what, absl::string_view name)
    -> absl::StatusOr<decltype(&entries[0])> {
  const std::string plain = Plain(name);
  std::vector<std::string> names;
  for (const auto& entry : entries) {
    if (Plain(entry.name()) == plain || IsAlias(entry, plain)) return &entry;
    names.push_back(entry.name());
  }
  return absl::NotFoundError(
      absl::StrCat("there is no ", what, " '", name, "'",
                   names.empty() ? ", and no other" : "; there are: ", absl::StrJoin(names, ", ")));
}

absl::Status CheckRange(const std::string& entry, const char* field, double value, double least,
                        double most) {
  if (std::isfinite(value) && value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(entry, ".", field, " lies from ", least, " to ", most, ", not ", value));
}

// Checks that guesses are names of the entry's fields.
template <typename Entry>
absl::Status CheckGuesses(const std::string& named, const Entry& entry) {
  for (const std::string& field : entry.guess()) {
    if (Entry::descriptor()->FindFieldByName(field) != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(named, ".guess: there is no field '", field, "'"));
  }
  return absl::OkStatus();
}

absl::Status CheckHardware(const Hardware& gpu) {
  const std::string entry = absl::StrCat("hardware '", gpu.name(), "'");
  MEGATRON_RETURN_IF_ERROR(CheckGuesses(entry, gpu));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "host_link_gb_per_s", gpu.host_link_gb_per_s(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "host_memory_gb_per_s", gpu.host_memory_gb_per_s(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "host_memory_gb", gpu.host_memory_gb(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "disk_read_gb_per_s", gpu.disk_read_gb_per_s(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "disk_write_gb_per_s", gpu.disk_write_gb_per_s(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "disk_gb", gpu.disk_gb(), 0, 1e9));
  if (const std::string& folder = gpu.disk_directory(); !folder.empty() && folder[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat(entry, ".disk_directory must be the whole path of a folder, from / on, not '",
                     folder, "'"));
  }
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "bf16_tflops", gpu.bf16_tflops(), 1e-6, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "fp32_tflops", gpu.fp32_tflops(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "fp8_tflops", gpu.fp8_tflops(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "fp4_tflops", gpu.fp4_tflops(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "memory_gib", gpu.memory_gib(), 1e-3, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "memory_gb_per_s", gpu.memory_gb_per_s(), 1e-3, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "link_gb_per_s", gpu.link_gb_per_s(), 1e-3, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "domain", gpu.domain(), 1, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "cores", gpu.cores(), 0, 1e5));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "thread_efficiency", gpu.thread_efficiency(),
                                      gpu.cores() > 0 ? 1e-3 : 0, 2));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "link_latency_us", gpu.link_latency_us(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "link_rank_latency_us", gpu.link_rank_latency_us(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "network_latency_us", gpu.network_latency_us(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "lane_latency_us", gpu.lane_latency_us(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "thread_meeting_us", gpu.thread_meeting_us(), 0, 1e6));
  if (gpu.far_memory_efficiency() != 0) {
    MEGATRON_RETURN_IF_ERROR(
        CheckRange(entry, "far_memory_efficiency", gpu.far_memory_efficiency(), 1e-3, 1));
  }
  return CheckRange(entry, "network_gb_per_s", gpu.network_gb_per_s(), 1e-3, 1e6);
}

// Checks that the model has what a prediction needs, in sizes whose products can be counted.
absl::Status CheckModel(const PlanModel& model) {
  const std::string entry = absl::StrCat("model '", model.name(), "'");
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "layers", model.layers(), 1, 1e5));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "hidden", model.hidden(), 1, 1e8));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "ffn", model.ffn(), 0, 1e8));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "heads", model.heads(), 1, 1e8));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "kv_heads", model.kv_heads(), 1, 1e8));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "head_dim", model.head_dim(), 1, 1e8));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "vocab", model.vocab(), 1, 1e9));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "experts", model.experts(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "experts_per_token", model.experts_per_token(),
                                      model.experts() > 0 ? 1 : 0, std::max(model.experts(), 0.0)));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "expert_ffn", model.expert_ffn(), model.experts() > 0 ? 1 : 0, 1e8));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "shared_ffn", model.shared_ffn(), 0, 1e8));
  // Models whose leading layers are dense have both widths.
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "dense_layers", model.dense_layers(), 0,
                                      model.ffn() >= 1 ? model.layers() : 0));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "query_rank", model.query_rank(), model.key_value_rank() > 0 ? 1 : 0, 1e8));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "key_value_rank", model.key_value_rank(), 0, 1e8));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "window", model.window(), 0, 1e9));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "windowed_share", model.windowed_share(), 0, 1));
  return CheckRange(entry, "rope_dim", model.rope_dim(), 0, 1e8);
}

absl::Status CheckImplementation(const Implementation& program) {
  const std::string entry = absl::StrCat("implementation '", program.name(), "'");
  MEGATRON_RETURN_IF_ERROR(CheckGuesses(entry, program));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "product_efficiency", program.product_efficiency(), 1e-3, 1.5));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "product_half_size", program.product_half_size(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "attention_efficiency", program.attention_efficiency(), 1e-3, 2));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "memory_efficiency", program.memory_efficiency(), 1e-3, 2));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "link_efficiency", program.link_efficiency(), 1e-3, 2));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "network_efficiency", program.network_efficiency(), 1e-3, 2));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "low_precision_efficiency", program.low_precision_efficiency(), 1e-3, 2));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "step_seconds", program.step_seconds(), 0, 1e3));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "measured_efficiency", program.measured_efficiency(), 0, 2));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "grouped_half_rows", program.grouped_half_rows(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "attention_half_heads", program.attention_half_heads(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "attention_half_heads_backward",
                                      program.attention_half_heads_backward(), 0, 1e6));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "layer_seconds_backward", program.layer_seconds_backward(), 0, 1));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "gradient_bytes", program.gradient_bytes(), 0, 8));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "optimizer_efficiency", program.optimizer_efficiency(), 0, 100));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "routing_seconds", program.routing_seconds(), 0, 1));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "gated_memory_efficiency", program.gated_memory_efficiency(), 0, 100));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "layer_overhead_seconds", program.layer_overhead_seconds(), 0, 1));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "routing_score_seconds", program.routing_score_seconds(), 0, 1));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "expert_wait", program.expert_wait(), 0, 10));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "turn_cost", program.turn_cost(), 0, 10));
  MEGATRON_RETURN_IF_ERROR(CheckRange(entry, "turn_seconds", program.turn_seconds(), 0, 1));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "permutation_efficiency", program.permutation_efficiency(), 0, 100));
  MEGATRON_RETURN_IF_ERROR(
      CheckRange(entry, "threads_efficiency", program.threads_efficiency(), 0, 2));
  return CheckRange(entry, "layer_seconds", program.layer_seconds(), 0, 1);
}

}  // namespace

absl::StatusOr<PlanFacts> ParsePlanFacts(absl::string_view text) {
  PlanFacts facts;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(std::string(text), &facts)) {
    return absl::InvalidArgumentError(error.text);
  }
  for (const Hardware& gpu : facts.hardware()) MEGATRON_RETURN_IF_ERROR(CheckHardware(gpu));
  for (const Implementation& program : facts.implementation()) {
    MEGATRON_RETURN_IF_ERROR(CheckImplementation(program));
  }
  for (const PlanModel& model : facts.model()) MEGATRON_RETURN_IF_ERROR(CheckModel(model));
  return facts;
}

absl::StatusOr<const Hardware*> FindHardware(const PlanFacts& facts, absl::string_view name) {
  return Find(facts.hardware(), "hardware", name);
}

absl::StatusOr<const Implementation*> FindImplementation(const PlanFacts& facts,
                                                         absl::string_view name) {
  return Find(facts.implementation(), "implementation", name);
}

absl::StatusOr<const PlanModel*> FindPlanModel(const PlanFacts& facts, absl::string_view name) {
  return Find(facts.model(), "model", name);
}

std::string NameGuesses(const Hardware& hardware, const Implementation& program) {
  std::vector<std::string> parts;
  if (program.guess_size() > 0)
    parts.push_back(absl::StrCat(absl::StrJoin(program.guess(), ", "), " of ", program.name()));
  if (hardware.guess_size() > 0)
    parts.push_back(absl::StrCat(absl::StrJoin(hardware.guess(), ", "), " of ", hardware.name()));
  if (parts.empty()) return "";
  return absl::StrCat("guesses, which nothing has measured: ", absl::StrJoin(parts, "; "));
}

}  // namespace megatron
