#include "megatron/data/indexed/merge_datasets.h"

#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/indexed/indexed_dataset.h"
#include "megatron/data/indexed/indexed_dataset_writer.h"
#include "megatron/data/indexed/token_type.h"

namespace megatron {
namespace {

constexpr int64_t kDocumentsBetweenReports = 4096;

absl::Status CheckSameKind(const IndexedDataset& first, const IndexedDataset& dataset) {
  if (dataset.token_type() != first.token_type()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", dataset.prefix(), "' stores tokens as ", TokenTypeName(dataset.token_type()), ", '",
        first.prefix(), "' as ", TokenTypeName(first.token_type())));
  }
  if (dataset.has_modes() != first.has_modes()) {
    const bool has = dataset.has_modes();
    return absl::InvalidArgumentError(absl::StrCat("'", (has ? dataset : first).prefix(),
                                                   "' has modes, '",
                                                   (has ? first : dataset).prefix(), "' has none"));
  }
  return absl::OkStatus();
}

absl::Status AddDocument(const IndexedDataset& dataset, int64_t document,
                         IndexedDatasetWriter& writer, MergeReport* report) {
  const auto [begin, end] = dataset.DocumentSequences(document);
  for (int64_t i = begin; i < end; ++i) {
    const absl::string_view bytes = dataset.SequenceBytes(i);
    std::optional<int8_t> mode;
    if (dataset.has_modes()) mode = dataset.SequenceMode(i);
    MEGATRON_RETURN_IF_ERROR(writer.AddStoredSequence(bytes, mode));
    report->bytes += static_cast<int64_t>(bytes.size());
    report->tokens += dataset.SequenceLength(i);
  }
  writer.EndDocument();
  report->sequences += end - begin;
  ++report->documents;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindDatasets(FileSystem& fs, const std::string& folder) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> listed, fs.List(folder));
  const std::set<std::string> names(listed.begin(), listed.end());
  std::set<std::string> prefixes;
  for (const std::string& name : names) {
    for (const auto& [ending, partner] : {std::pair(".bin", ".idx"), std::pair(".idx", ".bin")}) {
      if (!absl::EndsWith(name, ending)) continue;
      const std::string prefix = name.substr(0, name.size() - 4);
      if (names.count(prefix + partner) == 0) {
        return absl::DataLossError(absl::StrCat("'", JoinPath(folder, name), "' has no '", prefix,
                                                partner,
                                                "' beside it; is the dataset unfinished?"));
      }
      prefixes.insert(JoinPath(folder, prefix));
    }
  }
  if (prefixes.empty()) {
    return absl::NotFoundError(
        absl::StrCat("there is no dataset, no .bin with an .idx, in '", folder, "'"));
  }
  return std::vector<std::string>(prefixes.begin(), prefixes.end());
}

absl::StatusOr<MergeReport> MergeDatasets(absl::Span<const std::string> prefixes,
                                          const std::string& output_prefix, FileSystem& fs,
                                          absl::FunctionRef<bool(const MergeReport&)> keep_going) {
  if (prefixes.empty()) return absl::InvalidArgumentError("no datasets to merge");
  MEGATRON_ASSIGN_OR_RETURN(const IndexedDataset first, IndexedDataset::Open(prefixes[0]));
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<IndexedDatasetWriter> writer,
                            IndexedDatasetWriter::Create(fs, output_prefix, first.token_type()));
  MergeReport report;
  for (const std::string& prefix : prefixes) {
    MEGATRON_ASSIGN_OR_RETURN(const IndexedDataset dataset, IndexedDataset::Open(prefix));
    MEGATRON_RETURN_IF_ERROR(CheckSameKind(first, dataset));
    // Megatron copies such bytes, and its merged index then points to wrong places for every later
    // sequence.
    MEGATRON_RETURN_IF_ERROR(dataset.VerifyBinSize());
    for (int64_t i = 0; i < dataset.num_documents(); ++i) {
      MEGATRON_RETURN_IF_ERROR(AddDocument(dataset, i, *writer, &report));
      if (i % kDocumentsBetweenReports == 0 && !keep_going(report))
        return absl::CancelledError("interrupted");
    }
    ++report.datasets;
  }
  MEGATRON_RETURN_IF_ERROR(writer->Finalize());
  return report;
}

}  // namespace megatron
