#include "megatron/train/batches/evaluation_tasks.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "megatron/evaluate/task_examples.h"

namespace megatron {

absl::StatusOr<std::pair<std::string, std::string>> SplitTaskAndFile(absl::string_view text) {
  const size_t equals = text.find('=');
  if (equals == text.npos || equals + 1 == text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(text), " has no file: tasks are written as TASK=FILE"));
  }
  const absl::string_view name = text.substr(0, equals);
  MEGATRON_RETURN_IF_ERROR(FindTask(name).status());
  return std::pair(std::string(name), std::string(text.substr(equals + 1)));
}

absl::StatusOr<EvaluationTasks> OpenEvaluationTasks(FileSystem& fs,
                                                    const EvaluationTaskOptions& options,
                                                    const Tokenizer& tokenizer) {
  PrepareOptions prepare;
  prepare.max_context = options.seq_length;
  prepare.overlapping_eval = options.overlapping_eval;
  prepare.max_windows = options.limit;
  EvaluationTasks tasks;
  for (const auto& [name, path] : options.files) {
    MEGATRON_ASSIGN_OR_RETURN(const TaskInfo* const info, FindTask(name));
    MEGATRON_ASSIGN_OR_RETURN(const TaskExamples examples,
                              ReadExamples(fs, *info, path, options.limit),
                              _ << "for train.eval_tasks");
    MEGATRON_ASSIGN_OR_RETURN(PreparedTask prepared,
                              PreparedTask::Create(*info, examples, tokenizer, prepare),
                              _.SetPrepend() << path << ": ");
    tasks.push_back(std::make_unique<EvaluationTask>(std::move(prepared), options));
  }
  return tasks;
}

}  // namespace megatron
