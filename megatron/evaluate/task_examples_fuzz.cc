// Fuzzes ParseExamples of every task: any bytes as a file give either an error, or examples whose
// texts are UTF-8 and whose right answer is one of theirs.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/tokenizer/unicode.h"
#include "megatron/evaluate/task_examples.h"

namespace {

void CheckExample(const megatron::TaskInfo& task, const megatron::Example& example) {
  CHECK_GE(example.line, 1);
  CHECK(megatron::IsValidUtf8(example.context));
  for (const auto& answer : example.answers) CHECK(megatron::IsValidUtf8(answer));
  switch (task.form) {
    case megatron::TaskForm::kChoice:
      CHECK_GE(example.answers.size(), 2u);
      CHECK_EQ(example.answers.size(), example.lengths.size());
      CHECK(example.gold >= 0 && example.gold < static_cast<int64_t>(example.answers.size()));
      break;
    case megatron::TaskForm::kWord:
      CHECK_EQ(example.answers.size(), 1u);
      break;
    case megatron::TaskForm::kDocuments:
    case megatron::TaskForm::kOneText:
      CHECK(example.answers.empty());
      CHECK_GE(example.num_words, 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto tasks = megatron::AllTasks();
  const megatron::TaskInfo& task = tasks[data[0] % tasks.size()];
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  // What stands behind the last '~' is a file of labels.
  const size_t split = text.rfind('~');
  std::optional<absl::string_view> labels;
  if (task.has_labels_file && split != text.npos) labels = text.substr(split + 1);
  const auto parsed =
      megatron::ParseExamples(task, labels ? text.substr(0, split) : text, labels, /*limit=*/0);
  if (!parsed.ok()) {
    CHECK(absl::IsDataLoss(parsed.status())) << parsed.status();
    return 0;
  }
  CHECK(!parsed->examples.empty());
  for (const megatron::Example& example : parsed->examples) CheckExample(task, example);
  const auto first = megatron::ParseExamples(task, text, labels, /*limit=*/1);
  if (first.ok()) CHECK_EQ(first->examples.size(), 1u);
  return 0;
}
