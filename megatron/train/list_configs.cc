#include "megatron/train/list_configs.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/configs/config_shipped.h"
#include "megatron/train/trainer/flops.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {
namespace {

constexpr size_t kColumns = 5;
using Row = std::array<std::string, kColumns>;

absl::StatusOr<Row> Describe(const ShippedConfig& shipped) {
  MEGATRON_ASSIGN_OR_RETURN(
      const LoadedConfig loaded,
      LoadConfigFromString(shipped.text, shipped.name, {}, ConfigPurpose::kDryRun));
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                            CreateTokenizer(ToTokenizerOptions(loaded.config.data())));
  const RunOptions options = ToRunOptions(loaded.config, tokenizer->vocab_size());
  const config::ModelConfig& model = loaded.config.model();
  return Row{std::string(absl::StripSuffix(shipped.name, ".textproto")),
             config::ModelType::Type_Name(model.model_type()),
             FormatCount(CountParameters(model, options.trainer.model.padded_vocab_size)),
             options.num_ranks() == 1 ? "1 rank" : DescribeSizes(options.parallel),
             ConfigSummary(shipped.text)};
}

}  // namespace

std::string ConfigSummary(absl::string_view text) {
  std::string summary;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "# ")) break;
    absl::StrAppend(&summary, summary.empty() ? "" : " ", line);
  }
  summary += ' ';  // so that the last sentence ends like the others
  return summary.substr(0, std::min({summary.find(". "), summary.find(": "), summary.size() - 1}));
}

absl::StatusOr<std::vector<std::string>> ConfigsOfModel(absl::string_view model_type) {
  std::vector<std::string> names;
  for (const ShippedConfig& shipped : ShippedConfigs()) {
    MEGATRON_ASSIGN_OR_RETURN(
        const LoadedConfig loaded,
        LoadConfigFromString(shipped.text, shipped.name, {}, ConfigPurpose::kDryRun));
    if (config::ModelType::Type_Name(loaded.config.model().model_type()) == model_type)
      names.emplace_back(absl::StripSuffix(shipped.name, ".textproto"));
  }
  return names;
}

absl::StatusOr<std::string> ListConfigs() {
  std::vector<Row> rows = {{"NAME", "MODEL", "PARAMETERS", "LAYOUT", "WHAT IT IS"}};
  for (const ShippedConfig& shipped : ShippedConfigs()) {
    MEGATRON_ASSIGN_OR_RETURN(Row row, Describe(shipped));
    rows.push_back(std::move(row));
  }
  std::array<size_t, kColumns> widths = {};
  for (const Row& row : rows) {
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string table;
  for (const Row& row : rows) {
    for (size_t i = 0; i + 1 < kColumns; ++i)
      absl::StrAppend(&table, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    absl::StrAppend(&table, row.back(), "\n");
  }
  return table;
}

}  // namespace megatron
