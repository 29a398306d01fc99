#include "megatron/plan/predict_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "megatron/base/status_macros.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/shared_cores.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/plan/tensor_cuts.h"

namespace megatron {
namespace {

constexpr const char* kAdded[] = {"predicted_step_s",
                                  "predicted_tokens_per_s_per_gpu",
                                  "predicted_TFLOPs_per_gpu",
                                  "predicted_mfu_pct",
                                  "predicted_memory_GiB",
                                  "fits",
                                  "assumed",
                                  "error"};

constexpr size_t kPredicted = std::size(kAdded) - 2;  // those of predictions

// A row's cells by column, with what is assumed behind them.
class Row {
 public:
  Row(const CsvTable& table, const std::vector<std::string>& cells,
      const PlanAssumptions& assumptions)
      : table_(table), cells_(cells), assumptions_(assumptions) {}

  // Returns the first of the columns that has a value, of the row or assumed; or "".
  std::string Text(std::initializer_list<const char*> columns) {
    for (const char* column : columns) {
      for (size_t i = 0; i < cells_.size(); ++i) {
        if (table_.columns[i] != column) continue;
        const absl::string_view cell = absl::StripAsciiWhitespace(cells_[i]);
        if (!cell.empty() && cell != "n/a" && cell != "-") return std::string(cell);
      }
    }
    for (const char* column : columns) {
      const auto found = assumptions_.find(column);
      if (found == assumptions_.end()) continue;
      Assume(column, found->second);
      return found->second;
    }
    return "";
  }

  bool Has(const char* column) const {
    return std::find(table_.columns.begin(), table_.columns.end(), column) != table_.columns.end();
  }

  // Returns a positive number; `otherwise`, which is noted, where the row has none.
  absl::StatusOr<double> Number(std::initializer_list<const char*> columns, double otherwise) {
    const std::string text = Text(columns);
    if (text.empty()) {
      if (otherwise > 0) Assume(*columns.begin(), absl::StrCat(otherwise));
      return otherwise;
    }
    double number = 0;
    // "1 (2)" has the value of another precision in parentheses.
    const std::string first = text.substr(0, text.find_first_of(" (^"));
    if (!absl::SimpleAtod(first, &number) || !std::isfinite(number) || number < 0 || number > 1e9) {
      return absl::InvalidArgumentError(
          absl::StrCat(*columns.begin(), ": '", text, "' is no number that can be used"));
    }
    return number;
  }

  absl::StatusOr<int64_t> Integer(std::initializer_list<const char*> columns, int64_t otherwise) {
    MEGATRON_ASSIGN_OR_RETURN(const double number, Number(columns, static_cast<double>(otherwise)));
    if (number != std::floor(number)) {
      return absl::InvalidArgumentError(
          absl::StrCat(*columns.begin(), ": ", number, " is no whole number"));
    }
    return static_cast<int64_t>(number);
  }

  void Assume(absl::string_view key, absl::string_view value) {
    assumed_.push_back(absl::StrCat(key, "=", value));
  }
  std::string assumed() const { return absl::StrJoin(assumed_, " "); }

 private:
  const CsvTable& table_;
  const std::vector<std::string>& cells_;
  const PlanAssumptions& assumptions_;
  std::vector<std::string> assumed_;
};

absl::StatusOr<PlanModel> ReadModel(const PlanFacts& facts, Row* row) {
  PlanModel model;
  const std::string name = row->Text({"model"});
  MEGATRON_ASSIGN_OR_RETURN(const double hidden, row->Number({"hidden"}, 0));
  const auto known = FindPlanModel(facts, name);
  if (known.ok() && hidden == 0) {
    model = **known;
  } else if (hidden == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model '", name, "' is unknown, and the row has no hidden, layers and heads"));
  } else {
    model.set_name(name);
    model.set_hidden(hidden);
    MEGATRON_ASSIGN_OR_RETURN(const double heads, row->Number({"heads"}, hidden / 128));
    model.set_heads(heads);
    MEGATRON_ASSIGN_OR_RETURN(const double kv_heads,
                              row->Number({"kv_heads", "num_query_groups"}, heads));
    model.set_kv_heads(kv_heads);
    model.set_head_dim(hidden / std::max(1.0, heads));
    const std::string activation = row->Text({"activation"});
    model.set_is_gated(absl::StrContains(activation, "swiglu"));
    MEGATRON_ASSIGN_OR_RETURN(const double ffn, row->Number({"ffn"}, 4 * hidden));
    model.set_ffn(ffn);
    MEGATRON_ASSIGN_OR_RETURN(const double vocab, row->Number({"vocab"}, 51200));
    model.set_vocab(vocab);
    model.set_is_tied(true);
  }
  MEGATRON_ASSIGN_OR_RETURN(const int64_t layers, row->Integer({"layers"}, 0));
  if (layers > 0 && layers < 100000) {
    // Cuts of mixtures keep one dense layer.
    if (model.layers() > layers) model.set_dense_layers(std::min(model.dense_layers(), 1));
    model.set_layers(static_cast<int32_t>(layers));
  }
  return model;
}

// The program that a row comes from, as its source names it: fused kernels since Hopper.
std::string DefaultImplementation(const Hardware& gpu, const std::string& source) {
  if (absl::StrContains(source, "Megatron-DeepSpeed")) return "megatron_deepspeed";
  if (absl::StrContains(source, "Megatron-LM 0.14")) return "megatron_core_0_14";
  if (absl::StrContains(source, "Megatron-Core r0.8")) return "megatron_core_0_8";
  return gpu.fp8_tflops() > 0 ? "megatron_core" : "megatron_2021";
}

absl::StatusOr<PlanPrecision> ReadPrecision(Row* row) {
  std::string text = row->Text({"dtype", "precision"});
  if (text.empty()) {
    row->Assume("dtype", "bf16");
    text = "bf16";
  }
  const std::string lower = absl::AsciiStrToLower(text);
  if (absl::StrContains(lower, "fp8")) return PlanPrecision::kFp8;
  if (absl::StrContains(lower, "fp4")) return PlanPrecision::kFp4;
  if (absl::StrContains(lower, "16")) return PlanPrecision::k16Bits;
  if (lower == "fp32") return PlanPrecision::k32Bits;
  return absl::InvalidArgumentError(
      absl::StrCat("dtype: '", text, "' is none of fp32, bf16, fp16, fp8, MXFP8, NVFP4"));
}

// The text may also say whether the tensor-parallel ranks share out rows, as a column of its own
// may.
absl::Status ReadRecompute(const Implementation& program, Row* row, PlanLayout* layout) {
  std::string text = row->Text({"recompute"});
  if (text.empty()) {
    text = "none";
    row->Assume("recompute", text);
  }
  if (absl::StrContains(text, "selective")) layout->recompute = PlanRecompute::kSelective;
  if (absl::StrContains(text, "full")) layout->recompute = PlanRecompute::kFull;
  MEGATRON_ASSIGN_OR_RETURN(const int64_t written, row->Integer({"sp"}, -1));
  if (layout->grid.is_grid()) {
    if (written <= 0) return absl::OkStatus();
    return absl::InvalidArgumentError("sp: the ranks of a grid share out rows already");
  }
  bool shares = AssumesSequenceParallel(program, layout->tp);
  if (written >= 0) {
    shares = written > 0;
  } else if (absl::StrContains(text, "SP")) {
    shares = !absl::StrContains(text, "no SP");
  } else if (layout->tp > 1) {
    row->Assume("sp", shares ? "1" : "0");
  }
  layout->is_sequence_parallel = layout->tp > 1 && shares;
  return absl::OkStatus();
}

// Returns the number right behind `name` in a text like "PTD (tp8 pp12)", or 1.
int64_t NumberAfter(absl::string_view name, absl::string_view text) {
  const size_t at = text.find(name);
  if (at == absl::string_view::npos) return 1;
  absl::string_view digits = text.substr(at + name.size());
  size_t end = 0;
  while (end < digits.size() && absl::ascii_isdigit(digits[end])) ++end;
  int64_t number = 1;
  return absl::SimpleAtoi(digits.substr(0, end), &number) ? number : 1;
}

// Reads the grid of the tensor-parallel ranks.
absl::Status ReadGrid(Row* row, PlanLayout* layout) {
  std::string mode = row->Text({"tp_mode"});
  if (mode.empty()) mode = "1d";
  if (mode != "1d" && mode != "2d" && mode != "2.5d" && mode != "3d") {
    return absl::InvalidArgumentError(
        absl::StrCat("tp_mode: '", mode, "' is none of 1d, 2d, 2.5d, 3d"));
  }
  MEGATRON_ASSIGN_OR_RETURN(const int64_t depth, row->Integer({"tp_depth"}, 0));
  if (depth > 1 && mode != "2.5d") {
    return absl::InvalidArgumentError(
        absl::StrCat("tp_depth ", depth, " has no effect with tp_mode ", mode));
  }
  if (mode == "1d") return absl::OkStatus();
  const absl::StatusOr<PlanGrid> grid = GridOfMode(mode, layout->tp, depth);
  if (!grid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tp_mode ", mode, " with tp ", layout->tp,
        depth > 0 ? absl::StrCat(" and tp_depth ", depth) : "", ": ", grid.status().message()));
  }
  layout->grid = *grid;
  return absl::OkStatus();
}

absl::StatusOr<PlanLayout> ReadLayout(const Implementation& program, Row* row) {
  PlanLayout layout;
  const std::string scheme = row->Text({"scheme"});
  MEGATRON_ASSIGN_OR_RETURN(layout.tp, row->Integer({"tp"}, NumberAfter("tp", scheme)));
  MEGATRON_ASSIGN_OR_RETURN(layout.pp, row->Integer({"pp"}, NumberAfter("pp", scheme)));
  MEGATRON_ASSIGN_OR_RETURN(layout.vpp, row->Integer({"vpp"}, 1));
  MEGATRON_ASSIGN_OR_RETURN(layout.cp, row->Integer({"cp"}, 1));
  if (program.exchanges_heads()) layout.context = PlanContext::kAllToAll;
  MEGATRON_ASSIGN_OR_RETURN(layout.ep, row->Integer({"ep"}, 1));
  MEGATRON_ASSIGN_OR_RETURN(layout.micro_batch, row->Integer({"mbs"}, 1));
  MEGATRON_ASSIGN_OR_RETURN(layout.sequence, row->Integer({"seq"}, 0));
  MEGATRON_ASSIGN_OR_RETURN(const int64_t fsdp, row->Integer({"fsdp"}, 0));
  layout.shards_parameters = fsdp > 1 || absl::StrContains(row->Text({"method"}), "FSDP") ||
                             absl::StrContains(scheme, "FSDP") ||
                             absl::StrContains(scheme, "ZeRO-3");
  // Megatron cuts experts for the tensor-parallel ranks where nothing is said; FSDP alone gathers
  // them whole.
  const bool is_cut = row->Has("etp") && (layout.ep > 1 || !layout.shards_parameters);
  MEGATRON_ASSIGN_OR_RETURN(layout.etp, row->Integer({"etp"}, is_cut ? layout.tp : 1));
  MEGATRON_ASSIGN_OR_RETURN(const int64_t drops, row->Integer({"drops_tokens"}, 0));
  layout.drops_tokens = drops > 0 || absl::StrContains(row->Text({"model"}), "tokendrop") ||
                        absl::StrContains(row->Text({"source"}), "token drop");
  if (layout.sequence == 0) return absl::InvalidArgumentError("the row has no seq");
  MEGATRON_ASSIGN_OR_RETURN(const int64_t gpus, row->Integer({"gpus"}, 0));
  if (double(layout.tp) * layout.pp * layout.cp > 1e9) {
    return absl::InvalidArgumentError("tp x pp x cp is above 1e9");
  }
  const int64_t model_ranks = layout.tp * layout.pp * layout.cp;
  if (model_ranks < 1 || layout.micro_batch < 1) {
    return absl::InvalidArgumentError("tp, pp, cp and mbs are at least 1");
  }
  int64_t derived = gpus / model_ranks;
  MEGATRON_ASSIGN_OR_RETURN(layout.dp, row->Integer({"dp"}, derived));
  if (double(model_ranks) * layout.dp > 1e9) {
    return absl::InvalidArgumentError("tp x pp x cp x dp is above 1e9");
  }
  if (gpus > 0 && derived == 0 && layout.dp == derived) {
    return absl::InvalidArgumentError(
        absl::StrCat(gpus, " GPUs are fewer than tp x pp x cp, which is ", model_ranks));
  }
  if (gpus > 0 && layout.gpus() != gpus) {
    return absl::InvalidArgumentError(absl::StrCat("tp x pp x cp x dp is ", layout.gpus(),
                                                   " and not the ", gpus, " GPUs of the row"));
  }
  if (layout.dp < 1) return absl::InvalidArgumentError("the row has neither gpus nor dp");
  MEGATRON_ASSIGN_OR_RETURN(const int64_t batch, row->Integer({"gbs"}, 0));
  MEGATRON_ASSIGN_OR_RETURN(layout.micro_batches, row->Integer({"ga", "microbatches"}, 0));
  if (batch > 0) {
    const int64_t of_step = layout.dp * layout.micro_batch;
    if (batch % of_step != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("gbs ", batch, " is no multiple of dp x mbs = ", of_step));
    }
    layout.micro_batches = batch / of_step;
  }
  if (layout.micro_batches < 1) {
    return absl::InvalidArgumentError("the row has neither gbs nor microbatches");
  }
  MEGATRON_ASSIGN_OR_RETURN(layout.precision, ReadPrecision(row));
  MEGATRON_RETURN_IF_ERROR(ReadGrid(row, &layout));
  MEGATRON_RETURN_IF_ERROR(ReadRecompute(program, row, &layout));
  return layout;
}

// Returns whether a rank has the memory that the step needs, and if not how much it has.
std::string Fits(const Hardware& gpu, const PlanLayout& layout, const StepPrediction& step) {
  const double memory = MemoryOfRank(gpu, layout.gpus());
  if (memory == 0) return "unknown";
  if (step.memory_bytes <= memory) return "yes";
  return absl::StrFormat("no: %.4g GiB", memory / (1 << 30));
}

absl::StatusOr<std::vector<std::string>> PredictRow(const PlanFacts& facts,
                                                    const MeasuredKernels& kernels, Row* row) {
  if (absl::StrContains(row->Text({"section"}), "LoRA")) {
    return absl::InvalidArgumentError("section: steps that train adapters (LoRA) aren't predicted");
  }
  MEGATRON_ASSIGN_OR_RETURN(const PlanModel model, ReadModel(facts, row));
  const std::string gpu_name = row->Text({"gpu", "system"});
  if (gpu_name.empty()) return absl::InvalidArgumentError("the row has neither gpu nor system");
  MEGATRON_ASSIGN_OR_RETURN(const Hardware* gpu, FindHardware(facts, gpu_name));
  std::string program_name = row->Text({"implementation"});
  if (program_name.empty()) {
    program_name = DefaultImplementation(*gpu, row->Text({"source"}));
    row->Assume("implementation", program_name);
  }
  MEGATRON_ASSIGN_OR_RETURN(const Implementation* program, FindImplementation(facts, program_name));
  MEGATRON_ASSIGN_OR_RETURN(const PlanLayout layout, ReadLayout(*program, row));
  MEGATRON_ASSIGN_OR_RETURN(const StepPrediction step,
                            PredictStep(*gpu, *program, kernels, model, layout));
  const double seconds = step.seconds.total;
  const double tokens = double(layout.micro_batches) * layout.micro_batch * layout.dp *
                        layout.sequence / layout.gpus();
  const double tflops = step.model_flops / seconds / 1e12;
  return std::vector<std::string>{absl::StrFormat("%.6g", seconds),
                                  absl::StrFormat("%.6g", tokens / seconds),
                                  absl::StrFormat("%.5g", tflops),
                                  absl::StrFormat("%.4g", 100 * tflops / gpu->bf16_tflops()),
                                  absl::StrFormat("%.5g", step.memory_bytes / (1 << 30)),
                                  Fits(*gpu, layout, step)};
}

int ColumnOf(const CsvTable& table, absl::string_view name) {
  const auto found = std::find(table.columns.begin(), table.columns.end(), name);
  return found == table.columns.end() ? -1 : static_cast<int>(found - table.columns.begin());
}

// Absolute relative errors in percent of every `step`th row from `first` on, in ascending order.
// A measured column, its unit in that of the predicted one, and that one.
struct Pair {
  const char* measured;
  double unit;
  const char* predicted;
};

constexpr Pair kPairs[] = {{"iteration_s", 1, "predicted_step_s"},
                           {"iteration_ms", 1e-3, "predicted_step_s"},
                           {"measured_ms", 1e-3, "predicted_step_s"},
                           {"measured_alloc_GiB", 1, "predicted_memory_GiB"},
                           {"tokens_per_s_per_gpu", 1, "predicted_tokens_per_s_per_gpu"},
                           {"model_TFLOPs_per_gpu", 1, "predicted_TFLOPs_per_gpu"},
                           {"mfu_pct", 1, "predicted_mfu_pct"}};

// Returns every `step`-th row from `first` on, of those that were measured and predicted.
std::vector<ComparedRow> Compared(const CsvTable& table, const Pair& pair, size_t first,
                                  size_t step) {
  std::vector<ComparedRow> rows;
  const int measured = ColumnOf(table, pair.measured), predicted = ColumnOf(table, pair.predicted);
  if (measured < 0 || predicted < 0) return rows;
  for (size_t i = first; i < table.rows.size(); i += step) {
    ComparedRow row;
    if (!absl::SimpleAtod(table.rows[i][measured], &row.measured) ||
        !absl::SimpleAtod(table.rows[i][predicted], &row.predicted) || !(row.measured > 0)) {
      continue;
    }
    row.predicted /= pair.unit;
    rows.push_back(row);
  }
  return rows;
}

std::vector<double> Errors(const std::vector<ComparedRow>& rows) {
  std::vector<double> errors;
  for (const ComparedRow& row : rows)
    errors.push_back(100 * std::fabs(row.predicted / row.measured - 1));
  std::sort(errors.begin(), errors.end());
  return errors;
}

}  // namespace

absl::StatusOr<PlanAssumptions> ParseAssumptions(const std::string& text) {
  PlanAssumptions assumptions;
  if (text.empty()) return assumptions;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (pair.first.empty() || pair.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("'", part, "' is not key=value"));
    }
    assumptions[pair.first] = pair.second;
  }
  return assumptions;
}

absl::StatusOr<CsvTable> PredictRows(const PlanFacts& facts, const MeasuredKernels& kernels,
                                     const CsvTable& rows, const PlanAssumptions& assumptions) {
  CsvTable predicted = rows;
  for (const char* column : kAdded) {
    if (ColumnOf(rows, column) >= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the table has a column '", column, "' already"));
    }
    predicted.columns.push_back(column);
  }
  for (auto& cells : predicted.rows) {
    const std::vector<std::string> given = cells;
    Row row(rows, given, assumptions);
    const auto added = PredictRow(facts, kernels, &row);
    if (added.ok()) {
      cells.insert(cells.end(), added->begin(), added->end());
    } else {
      cells.insert(cells.end(), kPredicted, "");
    }
    cells.push_back(row.assumed());
    cells.push_back(std::string(added.status().message()));
  }
  return predicted;
}

std::vector<ComparedColumn> ComparedColumns(const CsvTable& predicted) {
  std::vector<ComparedColumn> columns;
  for (const Pair& pair : kPairs) {
    ComparedColumn column = {pair.measured, Compared(predicted, pair, 0, 1)};
    if (!column.rows.empty()) columns.push_back(std::move(column));
  }
  return columns;
}

std::vector<PredictionErrors> CompareWithMeasured(const CsvTable& predicted) {
  struct Part {
    const char* name;
    size_t first;
    size_t step;
  };
  std::vector<PredictionErrors> result;
  for (const Pair& pair : kPairs) {
    for (const Part& part : {Part{"all", 0, 1}, Part{"odd", 0, 2}, Part{"even", 1, 2}}) {
      const auto errors = Errors(Compared(predicted, pair, part.first, part.step));
      if (errors.empty()) continue;
      const size_t n = errors.size();
      const double sum = std::accumulate(errors.begin(), errors.end(), 0.0);
      result.push_back({pair.measured, part.name, n, sum / n, errors[n / 2],
                        errors[std::min(n - 1, n * 9 / 10)], errors.back()});
    }
  }
  return result;
}

std::string FormatErrors(const std::vector<PredictionErrors>& errors) {
  std::string text;
  for (const PredictionErrors& e : errors) {
    absl::StrAppendFormat(
        &text,
        "%-22s %4d %-4s rows  error: mean %.1f %%  median %.1f %%  p90 %.1f %%  worst %.1f %%\n",
        e.column, e.count, e.rows, e.mean, e.median, e.p90, e.worst);
  }
  return text;
}

}  // namespace megatron
