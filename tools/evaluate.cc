// Measures a trained GPT by published tasks, read from local files (docs/evaluation.md):
//   evaluate --checkpoint=run --task=hellaswag --path=hellaswag_val.jsonl

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/evaluate/engine_scores.h"
#include "megatron/evaluate/prepared_task.h"
#include "megatron/evaluate/task_examples.h"
#include "megatron/evaluate/task_report.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/inference/open_text_engine.h"
#include "tools/common/at_least_one.h"
#include "tools/common/interrupt.h"
#include "tools/common/progress_line.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, checkpoint, "",
          "The directory of all checkpoints of a run (the latest is taken), or of one iteration.");
ABSL_FLAG(std::vector<std::string>, task, {}, "The names of the tasks, with commas between them.");
ABSL_FLAG(std::vector<std::string>, path, {}, "Their files, in the same order.");
ABSL_FLAG(std::string, output, "", "A file for the results in lm_eval's form. Empty: none.");
ABSL_FLAG(int64_t, limit, 0,
          "The number of examples of each file, or of windows of a text, that are evaluated, from "
          "the first on; 0: all.");
ABSL_FLAG(std::optional<int64_t>, overlapping_eval, std::nullopt,
          "Tasks that are one text: the number of tokens by which the window over it moves on, at "
          "most the context. Not set: 32, or the context where that is shorter.");
ABSL_FLAG(int64_t, max_context, 0,
          "The most tokens that the model sees at once; 0: as many as in training.");
ABSL_FLAG(int, tensor_model_parallel_size, 1,
          "Cuts the model's matrices over so many ranks, which are threads of this process.");
ABSL_FLAG(int, pipeline_model_parallel_size, 1,
          "Cuts the model's layers over so many ranks, which are threads of this process.");
ABSL_FLAG(int, data_parallel_size, 1,
          "Holds the model so many times, which share out the examples.");
ABSL_FLAG(int, max_batch, 16, "The most texts that a copy of the model works on at once.");

namespace megatron {
namespace {

// More tokens of a step than a server has: nobody waits for the first answer.
constexpr int64_t kStepTokens = 512, kStepLogits = 256;

struct Asked {
  const TaskInfo* info = nullptr;
  std::string path;
};

absl::StatusOr<std::vector<Asked>> AskedTasks() {
  const std::vector<std::string> names = absl::GetFlag(FLAGS_task);
  const std::vector<std::string> paths = absl::GetFlag(FLAGS_path);
  if (names.empty()) return absl::InvalidArgumentError("--task must name a task");
  if (names.size() != paths.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--task names ", FormatQuantity(static_cast<int64_t>(names.size()), "task"),
                     ", and --path ", FormatQuantity(static_cast<int64_t>(paths.size()), "file")));
  }
  std::vector<Asked> asked;
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::count(names.begin(), names.end(), names[i]) > 1)
      return absl::InvalidArgumentError(absl::StrCat("--task names ", names[i], " twice"));
    MEGATRON_ASSIGN_OR_RETURN(const TaskInfo* const info, FindTask(names[i]), _ << "in --task");
    asked.push_back({info, paths[i]});
  }
  return asked;
}

int64_t Stride() {
  return absl::GetFlag(FLAGS_overlapping_eval).value_or(PrepareOptions().overlapping_eval);
}

absl::Status CheckFlags(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) return absl::InvalidArgumentError("there are flags only");
  if (absl::GetFlag(FLAGS_checkpoint).empty())
    return absl::InvalidArgumentError("--checkpoint must name the directory of a model");
  MEGATRON_RETURN_IF_ERROR(CheckAtLeastOne(
      {{"tensor_model_parallel_size", absl::GetFlag(FLAGS_tensor_model_parallel_size)},
       {"pipeline_model_parallel_size", absl::GetFlag(FLAGS_pipeline_model_parallel_size)},
       {"data_parallel_size", absl::GetFlag(FLAGS_data_parallel_size)},
       {"max_batch", absl::GetFlag(FLAGS_max_batch)},
       {"overlapping_eval", Stride()}}));
  if (absl::GetFlag(FLAGS_limit) < 0 || absl::GetFlag(FLAGS_max_context) < 0)
    return absl::InvalidArgumentError("--limit and --max_context are at least 0");
  return absl::OkStatus();
}

using Models = std::vector<std::unique_ptr<ServedModel>>;

absl::StatusOr<Models> OpenModels() {
  TextEngineOptions options;
  options.checkpoint = absl::GetFlag(FLAGS_checkpoint);
  options.tensor_parallel = absl::GetFlag(FLAGS_tensor_model_parallel_size);
  options.pipeline_parallel = absl::GetFlag(FLAGS_pipeline_model_parallel_size);
  options.max_batch = absl::GetFlag(FLAGS_max_batch);
  options.max_context = absl::GetFlag(FLAGS_max_context);
  options.max_step_tokens = kStepTokens;
  options.max_step_logits = kStepLogits;
  const int copies = absl::GetFlag(FLAGS_data_parallel_size);
  options.num_threads = std::max(1, AvailableCores() / copies);
  Models models;
  for (int i = 0; i < copies; ++i) {
    auto model = AsArgument(OpenTextEngine(PosixFileSystem(), options));
    // Other data that is wrong is a task's.
    if (absl::IsDataLoss(model.status()))
      return WithExitCode(model.status(), kExitCorruptCheckpoint);
    MEGATRON_ASSIGN_OR_RETURN(models.emplace_back(), std::move(model));
  }
  return models;
}

// Windows move on by the context at most. The default is lowered to it; a stride above it that
// somebody has asked for is a mistake.
absl::Status CheckStride(const std::vector<Asked>& asked, int64_t max_context) {
  const int64_t stride = Stride();
  if (stride <= max_context || !absl::GetFlag(FLAGS_overlapping_eval)) return absl::OkStatus();
  for (const Asked& task : asked) {
    if (task.info->form != TaskForm::kOneText) continue;
    return absl::InvalidArgumentError(absl::StrCat("--overlapping_eval=", stride,
                                                   " must not exceed the context, which is ",
                                                   FormatQuantity(max_context, "token")));
  }
  return absl::OkStatus();
}

absl::StatusOr<TaskResult> EvaluateTask(const Asked& asked, const TaskExamples& examples,
                                        const Models& models) {
  PrepareOptions options;
  options.max_context = models[0]->engine().limits().max_context;
  options.overlapping_eval = Stride();
  options.max_windows = absl::GetFlag(FLAGS_limit);
  MEGATRON_ASSIGN_OR_RETURN(
      const PreparedTask task,
      PreparedTask::Create(*asked.info, examples, models[0]->tokenizer(), options),
      _.SetPrepend() << asked.path << ": ");
  std::vector<TextEngine*> engines;
  for (const auto& model : models) engines.push_back(&model->engine());
  ProgressLine progress;
  const int64_t requests = static_cast<int64_t>(task.requests().size());
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<RequestScore> scores,
                            ScoreByEngines(engines, task.requests(), [&](int64_t done) {
                              progress.Update([&] {
                                return absl::StrCat(
                                    asked.info->name, ": ", done, " of ", requests, " texts",
                                    FormatRemaining(done, requests, progress.seconds()));
                              });
                              return !Interrupted();
                            }));
  progress.Clear();
  return TaskResult{asked.info->name, asked.path, task.num_examples(), task.num_cut(),
                    task.Metrics(scores)};
}

// Makes sure, before the work, that its results can be written.
absl::Status CheckOutput(const std::string& path) {
  FileSystem& fs = PosixFileSystem();
  MEGATRON_RETURN_IF_ERROR(CheckReplaceable(fs, path));
  const std::string probe = absl::StrCat(path, ".tmp");
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, fs.Create(probe),
                            _ << "for --output");
  MEGATRON_RETURN_IF_ERROR(file->Close());
  return fs.Remove(probe);
}

absl::Status Evaluate(const std::vector<std::string>& arguments) {
  MEGATRON_RETURN_IF_ERROR(CheckFlags(arguments));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<Asked> asked, AskedTasks());
  const std::string output = absl::GetFlag(FLAGS_output);
  if (!output.empty()) {
    MEGATRON_RETURN_IF_ERROR(CheckOutput(output));
  }
  MEGATRON_RETURN_IF_ERROR(ops::CheckCpu());
  std::vector<TaskExamples> examples;
  for (const Asked& task : asked) {
    MEGATRON_ASSIGN_OR_RETURN(examples.emplace_back(),
                              AsInput(ReadExamples(PosixFileSystem(), *task.info, task.path,
                                                   absl::GetFlag(FLAGS_limit))));
  }
  CatchInterrupts();
  MEGATRON_ASSIGN_OR_RETURN(const Models models, OpenModels());
  MEGATRON_RETURN_IF_ERROR(CheckStride(asked, models[0]->engine().limits().max_context));
  std::vector<TaskResult> results;
  for (size_t i = 0; i < asked.size(); ++i) {
    MEGATRON_ASSIGN_OR_RETURN(results.emplace_back(), EvaluateTask(asked[i], examples[i], models));
  }
  std::cout << FormatTaskTable(results);
  if (output.empty()) return absl::OkStatus();
  EvaluatedModel model;
  model.checkpoint = models[0]->directory();
  model.iteration = models[0]->iteration();
  model.max_length = models[0]->engine().limits().max_context;
  return WriteFileAtomically(PosixFileSystem(), output, LmEvalJson(model, results));
}

std::string Usage() {
  std::string usage =
      "Measures a trained GPT by published tasks, read from local files.\n\n"
      "  evaluate --checkpoint=DIRECTORY --task=NAME --path=FILE [flags]\n\nTasks:\n";
  for (const TaskInfo& task : AllTasks())
    absl::StrAppend(&usage, "  ", task.name, ": ", task.help, "\n");
  return usage;
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, megatron::Usage(), megatron::Evaluate);
}
