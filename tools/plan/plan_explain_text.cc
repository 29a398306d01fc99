#include "tools/plan/plan_explain_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "megatron/base/quantity.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/shared_cores.h"
#include "megatron/train/planning/planned_run.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {
namespace {

using report::Table;

constexpr double kSecondsOfHour = 3600;
constexpr double kGiB = 1 << 30;

std::string Time(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.2f s", seconds);
  const double ms = seconds * 1e3;
  return ms > 0 && ms < 9.95 ? absl::StrFormat("%.2f ms", ms) : absl::StrFormat("%.1f ms", ms);
}

std::string Percent(double part, double whole) {
  return absl::StrFormat("%.1f %%", whole > 0 ? 100 * part / whole : 0);
}

std::string Bytes(double bytes) { return FormatBytes(std::llround(bytes)); }

std::string Far(double bytes) { return bytes > 0 ? Bytes(bytes) : "-"; }

std::string Large(double value) {
  constexpr const char* kUnits[] = {"", " thousand", " million", " billion", " trillion"};
  int unit = 0;
  for (; value >= 1000 && unit < 4; ++unit) value /= 1000;
  return absl::StrFormat("%.4g%s", value, kUnits[unit]);
}

double CommunicationSeconds(const StepSeconds& s) {
  return s.tensor_parallel + s.context_parallel + s.expert_parallel + s.messages + s.data_parallel;
}

// Returns what the rank is, in singular.
const char* Noun(const Explanation& e) { return IsProcessor(e.gpu) ? "rank" : "GPU"; }

std::string LinkOf(const TrafficOfAxis& axis, const Hardware& gpu) {
  if (IsProcessor(gpu)) {
    return axis.crosses_network
               ? absl::StrFormat("between processes, %.3g GB/s", gpu.network_gb_per_s())
               : absl::StrFormat("memory, %.3g GB/s", gpu.link_gb_per_s());
  }
  return axis.crosses_network ? absl::StrFormat("network, %g GB/s", gpu.network_gb_per_s())
                              : absl::StrFormat("GPU to GPU, %g GB/s", gpu.link_gb_per_s());
}

std::string TextOf(const Table& table) {
  std::vector<size_t> widths;
  const auto widen = [&](size_t column, const std::string& text) {
    if (widths.size() <= column) widths.resize(column + 1);
    widths[column] = std::max(widths[column], text.size());
  };
  for (size_t i = 0; i < table.columns.size(); ++i) widen(i, table.columns[i]);
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) widen(i, row[i].text);
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text = " ";
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string space(widths[i] - cells[i].size(), ' ');
      const bool right = table.numbers && i > 0;
      absl::StrAppend(&text, " ", right ? space : "", cells[i], right ? "" : space);
    }
    return std::string(absl::StripTrailingAsciiWhitespace(text)) + "\n";
  };
  std::string text = absl::StrCat(table.caption, "\n");
  if (!table.columns.empty()) text += line(table.columns);
  for (const auto& row : table.rows) {
    std::vector<std::string> cells;
    for (const report::TableCell& cell : row) cells.push_back(cell.text);
    text += line(cells);
  }
  if (!table.note.empty()) absl::StrAppend(&text, "  ", table.note, "\n");
  return text;
}

double TokensPerSecond(const Explanation& e) { return e.step.tokens / e.step.seconds.total; }

}  // namespace

std::vector<std::pair<std::string, double>> PartsOf(const StepSeconds& s) {
  std::vector<std::pair<std::string, double>> parts = {
      {"computing", s.compute},
      {"waiting for tensor-parallel ranks", s.tensor_parallel},
      {"waiting for context-parallel ranks", s.context_parallel},
      {"waiting for experts' ranks", s.expert_parallel},
      {"waiting for messages between stages", s.messages},
      {"idle in the pipeline (bubble)", s.bubble},
      {"waiting for data-parallel ranks", s.data_parallel},
      {"waiting for the link to the host", s.host_link},
      {"optimizer", s.optimizer},
      {"the host, once a step", s.constant}};
  std::vector<std::pair<std::string, double>> there;
  for (auto& part : parts) {
    if (part.second > 0) there.push_back(std::move(part));
  }
  return there;
}

Table TimeTable(const Explanation& e) {
  const StepSeconds& s = e.step.seconds;
  Table table;
  table.caption = "Where the time of a step goes";
  if (e.step.simulated.stages.size() > 1)
    absl::StrAppend(&table.caption, ", on stage ", e.step.stage, ", which works most");
  table.columns = {"", "time", "share"};
  for (const auto& [name, seconds] : PartsOf(s))
    table.rows.push_back({name, Time(seconds), Percent(seconds, s.total)});
  table.rows.push_back({"in all", Time(s.total), Percent(s.total, s.total)});
  if (e.step.shares_cores) {
    table.note = absl::StrFormat(
        "%d ranks share %d cores, and wait for them in each part. The timeline is that of ranks "
        "which each have a core.",
        e.step.run.layout.gpus(), e.gpu.cores());
  }
  return table;
}

Table TrafficTable(const Explanation& e) {
  Table table;
  table.caption = "What a rank sends in a step";
  table.columns = {"axis", "ranks", "bytes", "far", "takes", "waited for", "hidden", "link"};
  for (const TrafficOfAxis& axis : e.step.traffic) {
    const PlanLayout& layout = e.step.run.layout;
    // Teams, instances and hosts are parts of these axes.
    const int64_t ranks = axis.axis == TrafficAxis::kData      ? layout.dp * layout.cp
                          : axis.axis == TrafficAxis::kContext ? layout.cp
                                                               : axis.rows.front().group.ranks;
    table.rows.push_back({Name(axis.axis), absl::StrCat(ranks), Bytes(axis.bytes),
                          Far(axis.network_bytes), Time(axis.seconds), Time(axis.exposed),
                          Time(axis.seconds - axis.exposed), LinkOf(axis, e.gpu)});
    for (const TrafficRow& row : axis.rows) {
      table.rows.push_back(
          {absl::StrCat("- ", row.what), "", Bytes(SentBytes(row)), Far(NetworkBytes(e.gpu, row)),
           "", "", "",
           absl::StrFormat("%g x %s of %s%s", row.calls, Name(row.call), Bytes(row.bytes),
                           HasTwoLevels(row) ? " in two levels" : "")});
    }
  }
  table.note =
      "\"Far\" leave the ranks that fast links join. \"Hidden\" runs beside computing. Links are "
      "given in one direction";
  absl::StrAppend(&table.note, IsProcessor(e.gpu) ? "." : ", as a GPU has them.");
  return table;
}

Table TensorTable(const Explanation& e) {
  const PlanLayout& layout = e.step.run.layout;
  const auto from = [&](const std::optional<int64_t>& tokens) {
    return tokens.has_value() ? absl::StrFormat("%s (%.3g)", FormatCount(*tokens),
                                                double(*tokens) / e.step.run.model.hidden())
                              : "-";
  };
  Table table;
  table.caption = absl::StrFormat(
      "Forms of tensor parallelism over these %d ranks, with micro-batches of %s tokens (%.3g)",
      layout.tp, FormatCount(layout.micro_batch * layout.sequence),
      double(layout.micro_batch * layout.sequence) / e.step.run.model.hidden());
  table.columns = {"form", "samples", "receives", "step", "memory", "less from", "faster from"};
  const char* sharing = "";
  for (const TensorForm& form : e.tensor_forms) {
    const bool can = form.refusal.empty();
    table.rows.push_back({form.name(), form.samples == 1 ? "any" : absl::StrCat(form.samples, "n"),
                          can ? Bytes(form.received) : "-", can ? Time(form.seconds) : "-",
                          can ? Bytes(form.memory_bytes) : "-", from(form.less_from),
                          from(form.faster_from)});
    if (form.is_sequence_parallel) sharing = " 1d is with sequence parallelism.";
  }
  table.note = absl::StrCat(
      "\"Samples\" must a micro-batch have. A rank \"receives\" so much in a layer and "
      "micro-batch. The last columns are tokens of a micro-batch from which on it receives less, "
      "and a step is shorter, than in 1d, and in brackets these tokens over the hidden size. Steps "
      "and memory are those of formulas, before a schedule is played or a rank is planned.",
      sharing);
  return table;
}

std::vector<std::string> TensorSentences(const Explanation& e) {
  const PlanLayout& layout = e.step.run.layout;
  if (e.tensor_forms.size() == 1 && layout.tp > 1) {
    return {absl::StrCat("These ", layout.tp,
                         " tensor-parallel ranks form no grid, as 4, 8, 9, 12 or 16 do: 1d is "
                         "their only form.")};
  }
  std::vector<std::string> sentences;
  const double memory = MemoryOfRank(e.gpu, layout.gpus());
  for (const TensorForm& form : e.tensor_forms) {
    if (!form.refusal.empty()) {
      sentences.push_back(absl::StrCat(form.name(), " is refused: ", form.refusal));
    } else if (memory > 0 && form.memory_bytes > memory) {
      sentences.push_back(absl::StrFormat("%s does NOT fit: a %s of %s has %s.", form.name(),
                                          Noun(e), e.gpu.name(), Bytes(memory)));
    }
  }
  return sentences;
}

Table MemoryTable(const Explanation& e) {
  Table table;
  table.caption = "Memory of a rank, planned by running the step without memory";
  table.columns = {"stage", "parameters", "memory", absl::StrCat("of the ", Noun(e), "'s")};
  const bool has_host = std::any_of(e.stages.begin(), e.stages.end(),
                                    [](const StageNeeds& stage) { return stage.host_bytes > 0; });
  if (has_host) table.columns.push_back("of the host");
  const double all = MemoryOfRank(e.gpu, e.step.run.layout.gpus());
  double most = 0, most_host = 0;
  for (size_t i = 0; i < e.stages.size(); ++i) {
    const StageNeeds& stage = e.stages[i];
    // Stages in the middle are alike.
    size_t last = i;
    while (last + 1 < e.stages.size() && e.stages[last + 1].bytes == stage.bytes &&
           e.stages[last + 1].host_bytes == stage.host_bytes &&
           e.stages[last + 1].parameters == stage.parameters) {
      ++last;
    }
    table.rows.push_back({last > i ? absl::StrCat(i, " to ", last) : absl::StrCat(i),
                          Large(stage.parameters), Bytes(stage.bytes),
                          all > 0 ? Percent(stage.bytes, all) : ""});
    if (has_host) table.rows.back().push_back(Bytes(stage.host_bytes));
    most_host = std::max(most_host, stage.host_bytes);
    most = std::max(most, stage.bytes);
    i = last;
  }
  if (all > 0 && most > all) {
    table.note =
        absl::StrFormat("It does NOT fit: a %s of %s has %s.", Noun(e), e.gpu.name(), Bytes(all));
  }
  const double host = e.gpu.host_memory_gb() * 1e9;
  if (host > 0 && most_host > host) {
    absl::StrAppendFormat(&table.note, "%sIt does NOT fit on the host: the share of a %s is %s.",
                          table.note.empty() ? "" : " ", Noun(e), Bytes(host));
  }
  return table;
}

Table RunTable(const Explanation& e) {
  const double steps = e.tokens / e.step.tokens;
  const double seconds = steps * e.step.seconds.total;
  const double gpu_hours = seconds / kSecondsOfHour * double(e.step.run.layout.gpus());
  Table table;
  table.caption = "The whole run";
  table.numbers = false;
  table.rows = {{"tokens", absl::StrCat(Large(e.tokens), ", ",
                                        absl::StrFormat("%.3g", e.tokens / e.step.parameters),
                                        " for each parameter")},
                {"steps", absl::StrFormat("%.0f", steps)},
                {"days", absl::StrFormat("%.3g", seconds / kSecondsOfHour / 24)},
                {absl::StrCat(Noun(e), " hours"), Large(gpu_hours)}};
  if (e.price > 0)
    table.rows.push_back({"cost", absl::StrCat(Large(gpu_hours * e.price), " dollars")});
  if (e.watts > 0)
    table.rows.push_back({"energy", absl::StrCat(Large(gpu_hours * e.watts / 1e3), " kWh")});
  return table;
}

namespace {

// A loss of this share of a step or more is worth a word.
constexpr double kLargeLoss = 0.05;

// Returns what a step waits for on the link to the host.
std::string OnTheLink(const PlanLayout& layout) {
  return layout.activations_on_host ? "weights, gradients and activations"
                                    : "weights and gradients";
}

// Returns what may make the greatest loss smaller, where it is large; else nothing.
std::string Advice(const Explanation& e) {
  struct Loss {
    double seconds = 0;
    std::string advice;
  };
  const StepSeconds& s = e.step.seconds;
  const PlanLayout& layout = e.step.run.layout;
  const Loss losses[] = {
      {s.tensor_parallel,
       "tensor-parallel ranks wait for each other in each layer; fewer of them, or larger "
       "micro-batches, wait less"},
      {s.context_parallel,
       "context-parallel ranks wait for each other in each layer; another parallel.cp_comm_type "
       "may wait less"},
      {s.expert_parallel,
       "rows go to their experts and back in each layer; fewer ranks that "
       "experts lie on wait less"},
      {s.messages, "stages wait for messages; fewer stages, or more layers on each, wait less"},
      {s.bubble,
       absl::StrCat("stages wait for each other where a step begins and ends; more micro-batches",
                    layout.vpp == 1 ? ", or several parts of the model on each rank "
                                      "(parallel.num_virtual_stages_per_pipeline_rank),"
                                    : "",
                    " make that share smaller")},
      {s.data_parallel,
       e.step.run.program.overlaps_gradients() || IsProcessor(e.gpu)
           ? "gradients are summed once a step; more samples in a step make that share smaller"
           : "gradients are summed once a step; parallel.overlap_grad_reduce hides that"},
      {s.host_link,
       absl::StrCat(OnTheLink(layout),
                    " cross the link to the host for each micro-batch; larger micro-batches wait "
                    "less")}};
  const Loss* greatest = &losses[0];
  for (const Loss& loss : losses) {
    if (loss.seconds > greatest->seconds) greatest = &loss;
  }
  if (greatest->seconds < kLargeLoss * s.total) return "";
  return absl::StrCat("Most is lost where ", greatest->advice,
                      ". tools:plan --config searches faster layouts.");
}

}  // namespace

std::vector<std::string> Sentences(const Explanation& e) {
  const StepSeconds& s = e.step.seconds;
  const double gpus = double(e.step.run.layout.gpus());
  const double peak = e.step.run.layout.precision == PlanPrecision::k32Bits ? e.gpu.fp32_tflops()
                                                                            : e.gpu.bf16_tflops();
  std::vector<std::string> sentences = {
      absl::StrFormat("A step of %s tokens takes %s: %s tokens a second, %s for each %s; %.1f %% "
                      "of the peak (MFU).",
                      Large(e.step.tokens), Time(s.total), Large(TokensPerSecond(e)),
                      Large(TokensPerSecond(e) / gpus), Noun(e),
                      100 * e.step.model_flops / s.total / (peak * 1e12)),
      absl::StrFormat("Computing waits for communication in %s of the step.",
                      Percent(CommunicationSeconds(s), s.total))};
  if (s.host_link > 0) {
    sentences.push_back(
        absl::StrFormat("It waits for %s on their way from the host or to it in %s of the step.",
                        OnTheLink(e.step.run.layout), Percent(s.host_link, s.total)));
  }
  if (s.bubble > 0) {
    sentences.push_back(absl::StrFormat(
        "The pipeline's bubble is %s of the step: %d stages, %d micro-batches.",
        Percent(s.bubble, s.total), e.step.run.layout.pp, e.step.run.layout.micro_batches));
  }
  if (std::string advice = Advice(e); !advice.empty()) sentences.push_back(std::move(advice));
  return sentences;
}

std::vector<std::string> Doubts(const Explanation& e) {
  std::vector<std::string> doubts;
  if (!e.missing_shapes.empty()) doubts.push_back(e.missing_shapes);
  if (!e.unpriced.empty())
    doubts.push_back(absl::StrCat("not priced: ", absl::StrJoin(e.unpriced, ", ")));
  std::string guesses = NameGuesses(e.gpu, e.step.run.program);
  if (!guesses.empty()) doubts.push_back(std::move(guesses));
  return doubts;
}

namespace {

std::string TensorText(const Explanation& e) {
  std::string text = e.tensor_forms.size() > 1 ? TextOf(TensorTable(e)) : "";
  for (const std::string& sentence : TensorSentences(e))
    absl::StrAppend(&text, text.empty() ? "" : "  ", sentence, "\n");
  return text;
}

}  // namespace

std::string ExplanationText(const Explanation& e) {
  std::vector<std::string> parts = {
      absl::StrCat(e.name, " on ", e.step.run.layout.gpus(), " x ", e.gpu.name(), ": ", e.layout,
                   "\n", absl::StrJoin(Sentences(e), "\n"), "\n"),
      TextOf(TimeTable(e))};
  if (!e.step.traffic.empty()) parts.push_back(TextOf(TrafficTable(e)));
  if (std::string forms = TensorText(e); !forms.empty()) parts.push_back(std::move(forms));
  parts.push_back(TextOf(MemoryTable(e)));
  parts.push_back(TextOf(RunTable(e)));
  const std::vector<std::string> doubts = Doubts(e);
  if (!doubts.empty()) parts.push_back(absl::StrCat(absl::StrJoin(doubts, "\n"), "\n"));
  return absl::StrJoin(parts, "\n");
}

}  // namespace megatron
