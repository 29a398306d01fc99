#include "tools/calibration/reference_runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/plan/shared_cores.h"
#include "tools/calibration/watched_run.h"

namespace megatron {
namespace {

// The most that the planner takes.
constexpr double kMostTurnCost = 10;
constexpr double kMostTurn = 0.006;
constexpr double kMostRouting = 1;
constexpr double kMostWait = 10;
constexpr double kLeastEfficiency = 0.3;
constexpr double kMostEfficiency = 1.5;
// Of kernels between products, as a share of what was measured of them alone.
constexpr double kLeastOfKernels = 0.5;
constexpr double kMostOfKernels = 3;
constexpr double kLeastOfThreads = 0.5;
constexpr double kMostOfThreads = 1.5;
constexpr int kValuesTried = 240;

constexpr const char* kTraining = R"(
optimizer { lr: 1e-3 }
data { stories { num_bytes: 1000000 seed: 2 } }
)";

constexpr const char* kNarrow = R"(
model {
  num_layers: 6 hidden_size: 320 num_attention_heads: 10 seq_length: 192
  position_embedding_type: rope hidden_dropout: 0 attention_dropout: 0
}
train { micro_batch_size: 1 global_batch_size: 4 train_iters: 10 eval_iters: 0 log_interval: 1 }
)";

constexpr const char* kWide = R"(
model {
  num_layers: 4 hidden_size: 384 num_attention_heads: 6 seq_length: 320
  position_embedding_type: rope normalization: RMSNorm swiglu: true disable_bias_linear: true
  untie_embeddings_and_output_weights: true hidden_dropout: 0 attention_dropout: 0
}
train { micro_batch_size: 1 global_batch_size: 8 train_iters: 10 eval_iters: 0 log_interval: 1 }
)";

constexpr const char* kMixture = R"(
model {
  num_layers: 3 hidden_size: 256 num_attention_heads: 4 seq_length: 160
  position_embedding_type: rope normalization: RMSNorm swiglu: true disable_bias_linear: true
  untie_embeddings_and_output_weights: true hidden_dropout: 0 attention_dropout: 0
  num_experts: 4 moe_ffn_hidden_size: 320 moe_router_topk: 2 moe_aux_loss_coeff: 0.01
}
train { micro_batch_size: 1 global_batch_size: 8 train_iters: 10 eval_iters: 0 log_interval: 1 }
)";

// Its experts have so few rows that what a layer of experts takes beside its products tells.
constexpr const char* kSmallMixture = R"(
model {
  num_layers: 3 hidden_size: 160 num_attention_heads: 5 seq_length: 112
  position_embedding_type: rope normalization: RMSNorm swiglu: true disable_bias_linear: true
  untie_embeddings_and_output_weights: true hidden_dropout: 0 attention_dropout: 0
  num_experts: 6 moe_ffn_hidden_size: 224 moe_router_topk: 2 moe_aux_loss_coeff: 0.01
}
train { micro_batch_size: 1 global_batch_size: 8 train_iters: 20 eval_iters: 0 log_interval: 1 }
)";

constexpr const char* kData = "parallel.data_parallel_size=2";
constexpr const char* kExperts = "parallel.expert_model_parallel_size=2";

using Measured = std::vector<std::pair<int, double>>;  // by row

double SquaredErrors(const Implementation& program, const Measured& rows,
                     const PredictRow& predict) {
  double sum = 0;
  for (const auto& [row, seconds] : rows) {
    const double error = std::log(predict(program, row) / seconds);
    sum += error * error;
  }
  return sum;
}

// Returns the value of a constant, on which predictions depend linearly, that has the least squares
// of the rows' relative errors, and thus goes by the rows in which it counts most.
double FitConstant(const Implementation& program, const Measured& rows, const PredictRow& predict,
                   double most, void (Implementation::*set)(double)) {
  Implementation without = program, with = program;
  (without.*set)(0);
  (with.*set)(most);
  double missing = 0, squares = 0;
  for (const auto& [row, seconds] : rows) {
    const double none = predict(without, row);
    const double slope = (predict(with, row) - none) / most / seconds;
    missing += slope * (1 - none / seconds);
    squares += slope * slope;
  }
  return squares == 0 ? 0 : std::clamp(missing / squares, 0.0, most);
}

// Returns the program with the value of a constant that has the least squares of errors: one of
// kValuesTried and one, from `from` to `to`. Without rows the program is as it was.
Implementation FitBySquares(const Implementation& program, const Measured& rows,
                            const PredictRow& predict, double from, double to,
                            void (Implementation::*set)(double)) {
  Implementation best = program;
  if (rows.empty()) return best;
  double least = INFINITY;
  for (int i = 0; i <= kValuesTried; ++i) {
    Implementation tried = program;
    (tried.*set)(from + (to - from) * i / kValuesTried);
    const double errors = SquaredErrors(tried, rows, predict);
    if (errors >= least) continue;
    least = errors;
    best = tried;
  }
  return best;
}

// A folder for configurations, which ends with this.
class Folder {
 public:
  Folder() {
    const char* const scratch = std::getenv("TMPDIR");
    path_ = absl::StrCat(scratch != nullptr ? scratch : "/tmp", "/calibrate.XXXXXX");
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~Folder() {
    if (!is_made()) return;
    for (const CheckedModel& model : ReferenceModels()) remove(FileOf(model.name).c_str());
    remove(path_.c_str());
  }

  bool is_made() const { return !path_.empty(); }
  std::string FileOf(const std::string& model) const {
    return absl::StrCat(path_, "/", model, ".textproto");
  }

 private:
  std::string path_;
};

}  // namespace

const std::vector<CheckedModel>& ReferenceModels() {
  static const auto* const models =
      new std::vector<CheckedModel>{{"narrow", absl::StrCat(kNarrow, kTraining)},
                                    {"wide", absl::StrCat(kWide, kTraining)},
                                    {"mixture", absl::StrCat(kMixture, kTraining)},
                                    {"small", absl::StrCat(kSmallMixture, kTraining)}};
  return *models;
}

const std::vector<CheckedLayout>& ReferenceLayouts() {
  static const auto* const layouts =
      new std::vector<CheckedLayout>{{"narrow", "dp1", {}},
                                     {"narrow", "dp2", {kData}},
                                     {"narrow", "tp2", {"parallel.tensor_model_parallel_size=2"}},
                                     {"wide", "dp1", {}},
                                     {"wide", "dp2", {kData}},
                                     {"narrow", "dp4", {"parallel.data_parallel_size=4"}},
                                     {"wide", "dp4", {"parallel.data_parallel_size=4"}},
                                     {"narrow", "pp3", {"parallel.pipeline_model_parallel_size=3"}},
                                     {"wide", "pp4", {"parallel.pipeline_model_parallel_size=4"}},
                                     {"mixture", "dp1", {}},
                                     {"mixture", "dp2", {kData}},
                                     {"small", "dp1", {}},
                                     {"small", "dp2", {kData}},
                                     {"mixture", "dp2 ep2", {kData, kExperts}}};
  return *layouts;
}

const std::string& ReferenceConfig(const std::string& model) {
  const auto& models = ReferenceModels();
  return std::find_if(models.begin(), models.end(),
                      [&](const CheckedModel& its) { return its.name == model; })
      ->config;
}

ReferenceRow::Kind KindOf(const PlannedLayout& planned) {
  if (HasMoreRanksThanCores(planned.hardware, planned.run.layout.gpus()))
    return planned.run.layout.pp > 1 ? ReferenceRow::kStages : ReferenceRow::kTurns;
  if (planned.run.layout.ep > 1) return ReferenceRow::kSharedExperts;
  if (planned.run.model.experts() > 0) return ReferenceRow::kExperts;
  if (HasThreads(planned.hardware, planned.run.layout.gpus())) return ReferenceRow::kThreads;
  return planned.run.model.is_gated() ? ReferenceRow::kGated : ReferenceRow::kPlain;
}

Implementation FitToReferences(Implementation program, const std::vector<ReferenceRow>& rows,
                               const PredictRow& predict) {
  const auto of_kind = [&](ReferenceRow::Kind kind) {
    Measured measured;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].kind == kind) measured.emplace_back(int(i), rows[i].measured);
    }
    return measured;
  };
  double rest = 0;
  for (const ReferenceRow& row : rows) rest += row.rest / double(rows.size());
  program.set_step_seconds(rest);
  Measured plain = of_kind(ReferenceRow::kPlain), gated = of_kind(ReferenceRow::kGated),
           threads = of_kind(ReferenceRow::kThreads);
  // Nothing tells the parts of the first rows that are there from each other.
  if (plain.empty()) plain.swap(gated);
  if (plain.empty()) plain.swap(threads);
  const auto fit_squares = [&](const Measured& its, double from, double to,
                               void (Implementation::*set)(double)) {
    program = FitBySquares(program, its, predict, from, to, set);
  };
  fit_squares(plain, kLeastEfficiency, kMostEfficiency, &Implementation::set_measured_efficiency);
  const double alone = program.gated_memory_efficiency() > 0 ? program.gated_memory_efficiency()
                                                             : program.memory_efficiency();
  fit_squares(gated, kLeastOfKernels * alone, kMostOfKernels * alone,
              &Implementation::set_gated_memory_efficiency);
  fit_squares(threads, kLeastOfThreads, kMostOfThreads, &Implementation::set_threads_efficiency);
  const auto fit = [&](ReferenceRow::Kind kind, double most, void (Implementation::*set)(double)) {
    (program.*set)(FitConstant(program, of_kind(kind), predict, most, set));
  };
  fit(ReferenceRow::kTurns, kMostTurnCost, &Implementation::set_turn_cost);
  fit_squares(of_kind(ReferenceRow::kStages), program.turn_seconds(), kMostTurn,
              &Implementation::set_turn_seconds);
  fit(ReferenceRow::kExperts, kMostRouting, &Implementation::set_routing_seconds);
  fit(ReferenceRow::kSharedExperts, kMostWait, &Implementation::set_expert_wait);
  return program;
}

absl::Status CheckTrainingProgram() {
  if (access(TrainingProgram().c_str(), X_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      TrainingProgram(),
      " isn't there, which trains the reference models: build //megatron/train:pretrain_gpt, or "
      "leave them out with --train=false"));
}

absl::StatusOr<FittedProgram> FitToReferenceRuns(const Hardware& hardware,
                                                 const Implementation& program,
                                                 const MeasuredKernels& kernels, int rounds) {
  MEGATRON_ASSIGN_OR_RETURN(const ProbeRates calibrated, CalibratedRates(hardware, kernels));
  const Folder folder;
  if (!folder.is_made()) return absl::InternalError("no folder can be made for configurations");
  std::vector<PlannedLayout> planned;
  for (const CheckedModel& model : ReferenceModels()) {
    MEGATRON_RETURN_IF_ERROR(
        WriteFileAtomically(PosixFileSystem(), folder.FileOf(model.name), model.config));
  }
  for (const CheckedLayout& layout : ReferenceLayouts()) {
    MEGATRON_ASSIGN_OR_RETURN(PlannedLayout its, PlanCheckedLayout(ReferenceConfig(layout.model),
                                                                   layout, program, hardware));
    MEGATRON_RETURN_IF_ERROR(its.Seconds(program, kernels).status());
    planned.push_back(std::move(its));
  }
  std::vector<std::vector<CheckedRun>> runs(planned.size());
  for (int round = 0; round < kTriesOfARun * rounds; ++round) {
    for (size_t i = 0; i < planned.size(); ++i) {
      if (Undisturbed(runs[i]) >= rounds) continue;
      const CheckedLayout& layout = ReferenceLayouts()[i];
      MEGATRON_ASSIGN_OR_RETURN(
          const CheckedRun run,
          RunWatched(layout, folder.FileOf(layout.model), int(hardware.cores()), calibrated));
      runs[i].push_back(run);
    }
  }
  const PredictRow predict = [&](const Implementation& fitted, int row) {
    return *planned[row].Seconds(fitted, kernels);
  };
  FittedProgram fitted;
  std::vector<ReferenceRow> rows;
  for (size_t i = 0; i < planned.size(); ++i) {
    const CheckedLayout& layout = ReferenceLayouts()[i];
    fitted.rows.push_back(
        {layout.model, layout.name, AtCalibratedSpeed(runs[i]), 0, Undisturbed(runs[i]) == 0});
    std::vector<double> rests;
    for (const CheckedRun& run : runs[i]) rests.push_back(run.rest);
    rows.push_back({KindOf(planned[i]), MedianOf(fitted.rows.back().measured), MedianOf(rests)});
  }
  fitted.program = FitToReferences(program, rows, predict);
  for (size_t i = 0; i < planned.size(); ++i) {
    fitted.rows[i].predicted = predict(fitted.program, int(i));
  }
  return fitted;
}

}  // namespace megatron
