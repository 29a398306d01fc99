// Computes the order of a dataset's samples ahead of time, into the folder that training reads it
// from (data.data_cache_path).

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/gpt/gpt_index_cache.h"
#include "megatron/data/indexed/indexed_dataset.h"
#include "megatron/data/split.h"
#include "tools/common/interrupt.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, prefix, "", "The dataset: its .bin and .idx files without these endings.");
ABSL_FLAG(int64_t, seq_length, 0, "Tokens per sample.");
ABSL_FLAG(uint32_t, seed, 1234, "The training's seed.");
ABSL_FLAG(int64_t, num_samples, 0,
          "Samples that training will ask for, train_iters * global_batch_size; 0: one epoch.");
ABSL_FLAG(std::string, split, "969,30,1", "Shares of training, validation and test.");
ABSL_FLAG(std::string, part, "train", "Which of them: train, valid or test.");
ABSL_FLAG(std::string, cache_dir, "", "The folder to write to; made where there is none.");

namespace megatron {
namespace {

absl::StatusOr<Split> PartFromFlag() {
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    if (absl::GetFlag(FLAGS_part) == SplitName(split)) return split;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--part=", absl::GetFlag(FLAGS_part), ": expected train, valid or test"));
}

absl::Status CheckFlags(const std::vector<std::string>& arguments) {
  if (!arguments.empty())
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", arguments[0], "'"));
  if (absl::GetFlag(FLAGS_prefix).empty())
    return absl::InvalidArgumentError("--prefix=DATASET is needed");
  if (absl::GetFlag(FLAGS_cache_dir).empty())
    return absl::InvalidArgumentError("--cache_dir=FOLDER is needed");
  if (absl::GetFlag(FLAGS_seq_length) < 1)
    return absl::InvalidArgumentError("--seq_length=TOKENS is needed, at least 1");
  if (absl::GetFlag(FLAGS_num_samples) < 0)
    return absl::InvalidArgumentError("--num_samples must not be negative");
  return absl::OkStatus();
}

absl::Status Main(const std::vector<std::string>& arguments) {
  MEGATRON_RETURN_IF_ERROR(CheckFlags(arguments));
  GptIndexIdentity identity;
  MEGATRON_ASSIGN_OR_RETURN(identity.split, PartFromFlag());
  MEGATRON_ASSIGN_OR_RETURN(const SplitShares shares, ParseSplit(absl::GetFlag(FLAGS_split)));
  MEGATRON_ASSIGN_OR_RETURN(const IndexedDataset dataset,
                            AsInput(IndexedDataset::Open(absl::GetFlag(FLAGS_prefix))));
  MEGATRON_ASSIGN_OR_RETURN(identity.fingerprint, dataset.DescribeContents());
  const SequenceRange range = SplitRange(identity.split, shares, dataset.num_sequences());
  GptIndexOptions options;
  options.first_sequence = range.begin;
  options.num_sequences = range.size();
  options.seq_length = absl::GetFlag(FLAGS_seq_length);
  options.seed = absl::GetFlag(FLAGS_seed);
  if (absl::GetFlag(FLAGS_num_samples) > 0) options.num_samples = absl::GetFlag(FLAGS_num_samples);
  const auto length = [&](int64_t i) { return dataset.SequenceLength(i); };

  EndWhenInterrupted("what there is of the index does not count, and the same command builds it");
  const IndexCache cache(PosixFileSystem(), absl::GetFlag(FLAGS_cache_dir));
  MEGATRON_ASSIGN_OR_RETURN(const GptIndex index,
                            LoadOrBuildGptIndex(cache, identity, options, length));
  const IndexCacheKey key = GptIndexKey(identity, options, index);
  // An index that could not be written was built all the same, and a warning has given the reason.
  if (!cache.Load(key).ok()) {
    return absl::ResourceExhaustedError(absl::StrCat("the index could not be kept in '",
                                                     absl::GetFlag(FLAGS_cache_dir),
                                                     "' for the reason above"));
  }
  for (const std::string& name : key.names)
    std::cout << cache.PathOf(key, absl::StrCat(name, ".npy")) << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(
      argc, argv,
      "Computes the order of a dataset's samples ahead of time and prints the paths of its three "
      "files: build_index --prefix=stories_text_document --seq_length=1024 --num_samples=100000 "
      "--cache_dir=cache",
      megatron::Main);
}
