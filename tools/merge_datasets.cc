// Joins indexed datasets into one.

#include "megatron/data/indexed/merge_datasets.h"

#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "tools/common/dataset_lock.h"
#include "tools/common/interrupt.h"
#include "tools/common/progress_line.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::vector<std::string>, input, {},
          "A folder, whose datasets are joined in the order of their names; or prefixes, joined in "
          "the order given here. More may stand behind the flags.");
ABSL_FLAG(std::string, output_prefix, "", "Prefix of the dataset to write.");

namespace megatron {
namespace {

absl::StatusOr<std::vector<std::string>> FindPrefixes(std::vector<std::string> inputs) {
  if (inputs.empty()) return absl::InvalidArgumentError("--input is missing");
  if (inputs.size() == 1) {
    const absl::StatusOr<FileInfo> info = PosixFileSystem().Stat(JoinPath(inputs[0], "."));
    if (info.ok()) return AsInput(FindDatasets(PosixFileSystem(), inputs[0]));
  }
  for (std::string& prefix : inputs) {
    absl::string_view name = prefix;
    if (!absl::ConsumeSuffix(&name, ".idx")) absl::ConsumeSuffix(&name, ".bin");
    prefix = std::string(name);
    if (absl::IsNotFound(PosixFileSystem().Stat(prefix + ".idx").status())) {
      return absl::DataLossError(absl::StrCat(
          "'", prefix, "' is neither a folder nor a dataset: there is no '", prefix, ".idx'"));
    }
  }
  return inputs;
}

std::string Describe(const MergeReport& report, double seconds) {
  return absl::StrFormat(
      "%d documents, %d sequences, %s tokens, %.1f MB; %.1f MB/s", report.documents,
      report.sequences, FormatCount(static_cast<double>(report.tokens)),
      static_cast<double>(report.bytes) / 1e6, static_cast<double>(report.bytes) / 1e6 / seconds);
}

absl::Status Main(const std::vector<std::string>& arguments) {
  std::vector<std::string> inputs = absl::GetFlag(FLAGS_input);
  inputs.insert(inputs.end(), arguments.begin(), arguments.end());
  const std::string output = absl::GetFlag(FLAGS_output_prefix);
  if (output.empty()) return absl::InvalidArgumentError("--output_prefix is missing");
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> prefixes,
                            FindPrefixes(std::move(inputs)));
  for (const std::string& prefix : prefixes) {
    std::error_code unequal;
    if (std::filesystem::equivalent(prefix + ".idx", output + ".idx", unequal)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", output, "' can't be read and written at the same time"));
    }
  }
  MEGATRON_ASSIGN_OR_RETURN(const DatasetLock lock, DatasetLock::Take(output));
  CatchInterrupts();
  ProgressLine progress;
  const absl::StatusOr<MergeReport> report =
      MergeDatasets(prefixes, output, PosixFileSystem(), [&](const MergeReport& so_far) {
        progress.Update([&] { return Describe(so_far, progress.seconds()); });
        return !Interrupted();
      });
  if (!report.ok()) progress.Clear();
  if (absl::IsCancelled(report.status()))
    return absl::CancelledError("interrupted; nothing was written");
  MEGATRON_RETURN_IF_ERROR(report.status());
  progress.Finish(Describe(*report, progress.seconds()));
  std::cout << output << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv,
                           "Joins indexed datasets, as Megatron's merge_datasets.py does:\n"
                           "  merge_datasets --input=shards --output_prefix=whole\n"
                           "  merge_datasets --output_prefix=whole shard0 shard1 shard2",
                           megatron::Main);
}
