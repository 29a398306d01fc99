#include <algorithm>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/quoted.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/evaluate/task_examples.h"
#include "megatron/train/batches/evaluation_tasks.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr int kMostSplits = 3;

void CheckSplit(ConfigChecker& check, const std::string& split) {
  double sum = 0;
  int count = 0;
  for (absl::string_view part : absl::StrSplit(split, ',')) {
    double share;
    if (++count > kMostSplits || !absl::SimpleAtod(part, &share) || !(share >= 0 && share <= 1e9)) {
      return check.Error("data.split",
                         "expects up to three shares that are not negative, as in \"969,30,1\"");
    }
    sum += share;
  }
  if (sum <= 0) check.Error("data.split", "gives nothing to any part");
}

// Rules about data files, and about separate files for each part.
void CheckDataFiles(ConfigChecker& check) {
  const config::DataConfig& data = check.resolved().data();
  for (absl::string_view path :
       {"data.data_path", "data.train_data_path", "data.valid_data_path", "data.test_data_path"}) {
    const auto& parts = path == "data.data_path"         ? data.data_path()
                        : path == "data.train_data_path" ? data.train_data_path()
                        : path == "data.valid_data_path" ? data.valid_data_path()
                                                         : data.test_data_path();
    if (std::find(parts.begin(), parts.end(), "") != parts.end())
      check.Error(path, "holds an empty prefix");
  }
  const config::TrainConfig& training = check.resolved().train();
  const bool evaluates = training.eval_iters() > 0 && training.eval_interval() > 0;
  if (data.train_data_path_size() > 0 && data.valid_data_path_size() == 0 && evaluates &&
      !check.locations().IsBroken("data.valid_data_path")) {
    check.Error("data.valid_data_path",
                "is required by data.train_data_path; train.eval_iters = 0 turns evaluation off");
  }
  if (training.full_validation() && data.mock_data()) {
    check.Error(
        "train.full_validation",
        absl::StrCat("cannot be used with ", check.Named("data.mock_data"), ", which has no end"));
  }
}

void CheckSetNames(ConfigChecker& check) {
  const char* const kPath = "train.validation_set_names";
  const auto& names = check.resolved().train().validation_set_names();
  for (const std::string& name : names) {
    if (name.empty()) return check.Error(kPath, "holds an empty name");
    if (absl::c_any_of(name, absl::ascii_iscntrl)) {
      return check.Error(kPath, absl::StrCat("holds ", Quoted(name), ", which has a line break or ",
                                             "another control character"));
    }
    if (std::count(names.begin(), names.end(), name) > 1)
      return check.Error(kPath, absl::StrCat("has \"", name, "\" twice"));
    // Metrics have "lm loss validation ppl".
    if (name == "ppl") return check.Error(kPath, "may not hold \"ppl\", the perplexity's name");
  }
}

void CheckTasks(ConfigChecker& check) {
  const char* const kPath = "train.eval_tasks";
  const config::TrainConfig& training = check.resolved().train();
  if (training.eval_tasks_size() == 0) return;
  std::vector<std::string> names;
  for (const std::string& text : training.eval_tasks()) {
    const auto file = SplitTaskAndFile(text);
    if (!file.ok()) return check.Error(kPath, file.status().message());
    if (absl::c_linear_search(names, file->first))
      return check.Error(kPath, absl::StrCat("names the task ", file->first, " twice"));
    names.push_back(file->first);
  }
  if (training.eval_iters() == 0 || training.eval_interval() == 0) {
    return check.Error(kPath,
                       absl::StrCat("is a part of evaluations, which ",
                                    check.Named(training.eval_iters() == 0 ? "train.eval_iters"
                                                                           : "train.eval_interval"),
                                    " turns off"));
  }
  const std::string interval = "train.eval_tasks_interval";
  if (check.Usable({"train.eval_interval", interval}) &&
      training.eval_tasks_interval() % training.eval_interval() != 0) {
    check.Error(interval,
                absl::StrCat("must be a multiple of ", check.Named("train.eval_interval")));
  }
  const bool has_text = absl::c_any_of(
      names, [](const std::string& name) { return (*FindTask(name))->form == TaskForm::kOneText; });
  if (!has_text) {
    check.HaveNoEffect({"train.overlapping_eval"},
                       absl::StrCat("with ", check.Named(kPath), ", of which none is one text"));
  }
  const bool is_usable = check.Usable({"model.seq_length", "train.overlapping_eval"});
  if (is_usable && check.IsWritten("train.overlapping_eval"))
    check.MustNotExceed("train.overlapping_eval", "model.seq_length",
                        static_cast<double>(training.overlapping_eval()),
                        static_cast<double>(check.resolved().model().seq_length()));
}

// Each type of tokenizer takes the fields that the factory of tokenizers lists.
void CheckTokenizer(ConfigChecker& check) {
  const std::string tokenizer = check.Named("data.tokenizer_type");
  const absl::StatusOr<TokenizerFields> fields =
      TokenizerFieldsOf(config::Tokenizer::Type_Name(check.resolved().data().tokenizer_type()));
  CHECK(fields.ok()) << fields.status();
  for (const absl::string_view name :
       {"vocab_size", "null_tokenizer_eod_id", "null_tokenizer_pad_id", "vocab_file", "merge_file",
        "tokenizer_model", "vocab_extra_ids", "tiktoken_pattern", "tiktoken_num_special_tokens",
        "tiktoken_special_tokens"}) {
    const std::string path = absl::StrCat("data.", name);
    if (absl::c_linear_search(fields->required, name)) {
      const bool empty = check.IsWritten(path) && check.ValueOf(path) == "\"\"";
      if ((!check.IsWritten(path) || empty) && !check.locations().IsBroken(path)) {
        check.Error(path, absl::StrCat("is required by ", tokenizer));
      }
    } else if (!absl::c_linear_search(fields->optional, name)) {
      check.HaveNoEffect({path}, absl::StrCat("with ", tokenizer));
    }
  }
}

void CheckIdsOfNullTokenizer(ConfigChecker& check) {
  const config::DataConfig& data = check.resolved().data();
  if (data.tokenizer_type() != config::Tokenizer::NullTokenizer ||
      !check.Usable({"data.vocab_size"})) {
    return;
  }
  const std::pair<absl::string_view, int64_t> ids[] = {
      {"data.null_tokenizer_eod_id", data.null_tokenizer_eod_id()},
      {"data.null_tokenizer_pad_id", data.null_tokenizer_pad_id()}};
  for (const auto& [path, id] : ids) {
    if (check.Usable({path}) && check.IsWritten(path) && id >= data.vocab_size())
      check.Error(path, absl::StrCat("must be less than ", check.Named("data.vocab_size")));
  }
}

void CheckOneSource(ConfigChecker& check, const config::DataConfig& data) {
  std::vector<const char*> sources;
  if (data.data_path_size() > 0) sources.push_back("data.data_path");
  if (!data.data_args_path().empty()) sources.push_back("data.data_args_path");
  if (data.train_data_path_size() > 0) sources.push_back("data.train_data_path");
  if (!data.per_split_data_args_path().empty()) sources.push_back("data.per_split_data_args_path");
  if (data.mock_data()) sources.push_back("data.mock_data");
  if (data.has_stories()) sources.push_back("data.stories");
  if (sources.empty() && !check.locations().IsBroken("data.data_path")) {
    check.Error("data.data_path",
                "there is no data: set data.data_path, data.stories or data.mock_data");
  }
  // What the command line asks for is wanted rather than what a file has.
  const auto is_of_file = [&](const char* path) {
    return !absl::StartsWith(check.locations().Where(path), "--set");
  };
  for (size_t i = 1; i < sources.size(); ++i) {
    const bool keeps_other = is_of_file(sources[0]) && !is_of_file(sources[i]);
    const char* const unwanted = keeps_other ? sources[0] : sources[i];
    check.MessageError(
        "data", absl::StrCat(check.Named(sources[i]), " contradicts ", check.Named(sources[0]),
                             "; choose one: --set ", unwanted, "= takes ", unwanted, " away"));
  }
}

}  // namespace

void CheckData(ConfigChecker& check) {
  const config::DataConfig& data = check.resolved().data();
  CheckOneSource(check, data);
  CheckDataFiles(check);
  CheckSetNames(check);
  CheckTasks(check);
  CheckSplit(check, data.split());
  if (data.has_stories() && data.tokenizer_type() == config::Tokenizer::NullTokenizer) {
    return check.Error("data.tokenizer_type", "cannot read data.stories, which is text");
  }
  CheckTokenizer(check);
  CheckIdsOfNullTokenizer(check);
}

}  // namespace megatron
