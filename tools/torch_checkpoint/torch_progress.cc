#include "tools/torch_checkpoint/torch_progress.h"

#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/base/mapped_file.h"
#include "megatron/base/status_macros.h"
#include "megatron/tensor/tensor.h"

namespace megatron {
namespace {

using Kind = PickleValue::Kind;

constexpr double kLargestWhole = 9007199254740992;  // 2^53: doubles below it tell whole numbers

// Returns a number, or that of a tensor with one element; nothing for other values.
std::optional<double> NumberOf(const TorchFile& file, const PickleValue& value) {
  if (value.is(Kind::kInt)) return static_cast<double>(value.integer);
  if (value.is(Kind::kFloat)) return value.number;
  const absl::StatusOr<TorchTensor> tensor = file.TensorOf(value);
  if (!tensor.ok() || tensor->numel() != 1) return std::nullopt;
  float number = 0;
  CopyElements(*tensor, 0, 1, Tensor(&number, DType::kFloat32, {1}), 0);
  return number;
}

// Returns a whole number that is not negative, or nothing.
std::optional<int64_t> CountOf(const TorchFile& file, const PickleValue* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is(Kind::kInt))
    return value->integer < 0 ? std::nullopt : std::optional(value->integer);
  const std::optional<double> number = NumberOf(file, *value);
  if (!number || !(*number >= 0 && *number < kLargestWhole) || *number != std::floor(*number))
    return std::nullopt;
  return static_cast<int64_t>(*number);
}

// What the states of an optimizer say besides tensors.
class OptimizerNumbers {
 public:
  explicit OptimizerNumbers(const TorchFile& file) : file_(file) {}

  // Reads the lists and dicts of an optimizer, each once, and those of optimizers within it.
  void Read(const PickleValue* root) {
    std::vector<const PickleValue*> open = {root};
    std::set<const PickleValue*> seen;
    while (!open.empty()) {
      const PickleValue* const value = open.back();
      open.pop_back();
      if (value == nullptr || !seen.insert(value).second) continue;
      if (value->is(Kind::kList) || value->is(Kind::kTuple))
        open.insert(open.end(), value->items.begin(), value->items.end());
      if (!value->is(Kind::kDict)) continue;
      // An object of its own has no name.
      if (value->Get("growth_tracker") != nullptr) scaler_ = value;
      for (const auto& [key, of] : value->entries) ReadEntry(*key, *of, &open);
    }
  }

  // Appends the numbers of updates that were found to *steps, each once.
  void AddSteps(std::set<int64_t>* steps) const { steps->insert(steps_.begin(), steps_.end()); }
  // Megatron's state of a loss scale; null: there is none.
  const PickleValue* scaler() const { return scaler_; }

 private:
  void ReadEntry(const PickleValue& key, const PickleValue& value,
                 std::vector<const PickleValue*>* open) {
    if (key.is(Kind::kText) && (key.text == "step" || key.text == "common_step")) {
      // A group without parameters has made none.
      if (const std::optional<int64_t> count = CountOf(file_, &value)) steps_.insert(*count);
      return;
    }
    if (key.is(Kind::kText) && key.text == "grad_scaler") {
      scaler_ = &value;
      return;
    }
    open->push_back(&value);
  }

  const TorchFile& file_;
  std::set<int64_t> steps_;
  const PickleValue* scaler_ = nullptr;
};

absl::Status Lacks(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("has no ", what,
                                          ", which the run needs to go on; without --continue_run "
                                          "its weights alone are taken"));
}

// Reads what both formats have: the iteration, the samples and the schedule.
absl::StatusOr<TorchProgress> CommonProgress(const TorchFile& file) {
  const PickleValue& root = file.object();
  const auto count = [&](const PickleValue* parent, const char* name) {
    return CountOf(file, parent == nullptr ? nullptr : parent->Get(name));
  };
  const PickleValue* const arguments = root.Get("args");
  const PickleValue* schedule = root.Get("opt_param_scheduler");
  // DeepSpeed's name.
  if (schedule == nullptr || !schedule->is(Kind::kDict)) schedule = root.Get("lr_scheduler");
  TorchProgress progress;
  const std::optional<int64_t> iteration = count(&root, "iteration");
  if (!iteration) return Lacks("iteration");
  progress.iteration = *iteration;
  const std::optional<int64_t> samples = count(arguments, "consumed_train_samples");
  if (!samples) return Lacks("args.consumed_train_samples");
  progress.consumed_train_samples = *samples;
  progress.consumed_valid_samples = count(arguments, "consumed_valid_samples").value_or(0);
  const std::optional<int64_t> steps = count(schedule, "num_steps");
  if (!steps) return Lacks("num_steps of opt_param_scheduler or lr_scheduler");
  progress.schedule_steps = *steps;
  return progress;
}

absl::Status SetSteps(const std::set<int64_t>& steps, TorchProgress* progress) {
  if (steps.empty()) return Lacks("step of Adam's");
  if (steps.size() > 1) {
    return absl::DataLossError(absl::StrCat("has parameters with ", *steps.begin(), " and with ",
                                            *steps.rbegin(),
                                            " updates of Adam's; here all have as many"));
  }
  progress->applied_steps = *steps.begin();
  return absl::OkStatus();
}

// Reads a dynamic loss scale: its value, the steps since it last changed, and the overflows until
// it is halved.
absl::Status SetScaler(const TorchFile& file, const PickleValue* scale,
                       const PickleValue* clean_steps, const PickleValue* hysteresis,
                       TorchProgress* progress) {
  const std::optional<double> value = scale == nullptr ? std::nullopt : NumberOf(file, *scale);
  if (!value || !(*value > 0) || !std::isfinite(*value)) return Lacks("state of the loss scale");
  progress->scaler.scale = *value;
  progress->scaler.clean_steps = CountOf(file, clean_steps).value_or(0);
  progress->scaler.hysteresis_left = CountOf(file, hysteresis).value_or(1);
  return absl::OkStatus();
}

// Reads step.pt of each parameter.
absl::Status ReadSteps(const std::string& zero, std::set<int64_t>* steps) {
  FileSystem& fs = PosixFileSystem();
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(zero));
  for (const std::string& name : names) {
    const std::string path = JoinPath(JoinPath(zero, name), "step.pt");
    if (!fs.Stat(path).ok()) continue;
    MEGATRON_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    MEGATRON_ASSIGN_OR_RETURN(const TorchFile saved, TorchFile::Parse(file.data()),
                              _.SetPrepend() << path << ": ");
    const std::optional<int64_t> count = CountOf(saved, &saved.root());
    if (!count) return absl::DataLossError(absl::StrCat(path, ": is no number of updates"));
    steps->insert(*count);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TorchProgress> MegatronProgress(const TorchFile& common,
                                               const std::vector<std::string>& optimizers,
                                               bool is_fp16) {
  MEGATRON_ASSIGN_OR_RETURN(TorchProgress progress, CommonProgress(common));
  std::set<int64_t> steps;
  bool has_scaler = false;
  const auto read = [&](const TorchFile& file, const PickleValue* optimizer) {
    OptimizerNumbers numbers(file);
    numbers.Read(optimizer);
    numbers.AddSteps(&steps);
    const PickleValue* const scaler = numbers.scaler();
    if (!is_fp16 || scaler == nullptr) return absl::OkStatus();
    has_scaler = true;
    return SetScaler(file, scaler->Get("scale"), scaler->Get("growth_tracker"),
                     scaler->Get("hysteresis_tracker"), &progress);
  };
  MEGATRON_RETURN_IF_ERROR(read(common, common.object().Get("optimizer")));
  for (const std::string& bytes : optimizers) {
    MEGATRON_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Parse(bytes),
                              _.SetPrepend() << "has an object of an optimizer that is ");
    MEGATRON_RETURN_IF_ERROR(read(file, &file.root()));
  }
  MEGATRON_RETURN_IF_ERROR(SetSteps(steps, &progress));
  if (is_fp16 && !has_scaler) return Lacks("state of the loss scale");
  return progress;
}

absl::StatusOr<TorchProgress> UniversalProgress(const TorchFile& states, const std::string& zero,
                                                bool is_fp16) {
  MEGATRON_ASSIGN_OR_RETURN(TorchProgress progress, CommonProgress(states));
  std::set<int64_t> steps;
  MEGATRON_RETURN_IF_ERROR(ReadSteps(zero, &steps));
  const std::string path = JoinPath(zero, "optimizer_state.pt");
  const bool has_common = MappedFile::Open(path).ok();
  if (!has_common && is_fp16) return Lacks("zero/optimizer_state.pt");
  if (has_common) {
    MEGATRON_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    MEGATRON_ASSIGN_OR_RETURN(const TorchFile saved, TorchFile::Parse(file.data()),
                              _.SetPrepend() << path << ": ");
    OptimizerNumbers numbers(saved);
    numbers.Read(saved.root().Get("param_groups"));
    numbers.AddSteps(&steps);
    const PickleValue* const scaler = saved.root().Get("loss_scaler");
    if (is_fp16 && scaler == nullptr) return Lacks("state of the loss scale");
    if (is_fp16) {
      // DeepSpeed counts its clean steps in another way: the window begins anew.
      MEGATRON_RETURN_IF_ERROR(SetScaler(saved, scaler->Get("cur_scale"), nullptr,
                                         scaler->Get("cur_hysteresis"), &progress));
    }
  }
  MEGATRON_RETURN_IF_ERROR(SetSteps(steps, &progress));
  return progress;
}

void SetProgress(const TorchProgress& progress, CheckpointState* state) {
  state->iteration = progress.iteration;
  state->ints = {{"iteration", progress.iteration},
                 {"consumed_train_samples", progress.consumed_train_samples},
                 {"consumed_valid_samples", progress.consumed_valid_samples},
                 {"skipped_iterations", 0},
                 {"nan_iterations", 0},
                 {"optimizer.applied_steps", progress.applied_steps},
                 {"opt_param_scheduler.num_steps", progress.schedule_steps},
                 {"loss_scaler.clean_steps", progress.scaler.clean_steps},
                 {"loss_scaler.hysteresis_left", progress.scaler.hysteresis_left}};
  state->floats = {{"loss_scaler.scale", progress.scaler.scale}};
  state->strings["optimizer"] = "adam";
}

}  // namespace megatron
