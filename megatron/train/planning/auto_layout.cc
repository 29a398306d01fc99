#include "megatron/train/planning/auto_layout.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/text_format.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/text_proto.h"
#include "megatron/train/planning/layout_axes.h"
#include "megatron/train/planning/nothing_fits.h"
#include "megatron/train/planning/planned_run.h"
#include "megatron/train/planning/planning_facts.h"
#include "megatron/train/planning/search_layouts.h"
#include "megatron/train/planning/unpriced_fields.h"
#include "megatron/train/planning/written_layout.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/validate/validate.h"

namespace megatron {
namespace {

constexpr const char* kMicroBatch = "train.micro_batch_size";
constexpr int kShown = 3;  // the layout taken, and those beside it
constexpr int64_t kMostFileBytes = 1 << 20;

// Returns whether a layout may set the field.
bool MayChange(absl::string_view path) {
  return absl::StartsWith(path, "parallel.") || absl::StartsWith(path, "recompute.") ||
         IsOfLayout(path) || path == kMicroBatch;
}

// Returns the overrides that make the second configuration from the first, and that set or remove
// each field of a layout, whatever a later start of the run finds written there.
std::vector<std::string> OverridesOf(const config::PretrainConfig& from,
                                     const config::PretrainConfig& to) {
  std::vector<std::string> overrides;
  for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
    if (!MayChange(path)) continue;
    const FieldRef before = Resolve(from, path), after = Resolve(to, path);
    const bool is_layout = IsOfLayout(path) || path == kMicroBatch;
    const std::string value = IsPresent(after) ? ValueText(after) : "";
    if (is_layout || value != (IsPresent(before) ? ValueText(before) : ""))
      overrides.push_back(absl::StrCat(path, "=", value));
  }
  return overrides;
}

// Chooses for one request.
class Chooser {
 public:
  Chooser(FileSystem& fs, const LayoutRequest& request)
      : fs_(fs),
        request_(request),
        config_(request.parsed.config),
        options_(ToPlanningOptions(config_)),
        written_(WrittenLayout(config_)) {
    const config::SystemConfig& system = config_.system();
    is_gpu_ = system.has_device() ? system.device() == config::Device::cuda : CudaDeviceCount() > 0;
  }

  absl::StatusOr<SavedLayout> Choose();

 private:
  absl::Status CountRanks();
  absl::Status CheckBase() const;
  // Returns why the saved layout can't be kept; empty if it can.
  std::string WhyNot(const SavedLayout& saved) const;
  absl::StatusOr<SavedLayout> Search(const PlanningFacts& facts) const;
  SavedLayout Describe(const PlanningFacts& facts, const LayoutSearch& found) const;
  std::string SavedPath() const { return JoinPath(config_.checkpoint().save(), kSavedLayoutName); }

  FileSystem& fs_;
  const LayoutRequest& request_;
  const config::PretrainConfig& config_;
  const PlanningOptions options_;
  const std::vector<WrittenField> written_;
  bool is_gpu_ = false;
  int64_t ranks_ = 1;
  int64_t ranks_here_ = 1;
};

absl::Status Chooser::CountRanks() {
  ranks_ = ranks_here_ = options_.ranks > 0 ? options_.ranks
                         : is_gpu_          ? std::max(1, CudaDeviceCount())
                                            : 1;
  if (request_.launched == 0) return absl::OkStatus();
  if (options_.ranks > 0 && options_.ranks != request_.launched) {
    return absl::InvalidArgumentError(absl::StrCat("train.auto_layout_ranks = ", options_.ranks,
                                                   ": the launcher has started ", request_.launched,
                                                   " ranks; leave the field out"));
  }
  ranks_ = request_.launched;
  ranks_here_ = request_.launched_here;
  return absl::OkStatus();
}

// What is wrong in any layout has its place in the file.
absl::Status Chooser::CheckBase() const {
  if (!config_.train().has_global_batch_size()) {
    return absl::InvalidArgumentError(
        "train.global_batch_size: must be written, since layouts share it out "
        "(--set=train.global_batch_size=16)");
  }
  return ToStatus(Validate(WithoutRanks(config_, LayoutAxes(), is_gpu_), request_.parsed.locations,
                           ConfigPurpose::kDryRun));
}

std::string Chooser::WhyNot(const SavedLayout& saved) const {
  if (saved.ranks() != ranks_)
    return absl::StrCat("it is for ", FormatQuantity(saved.ranks(), "rank"));
  const ParsedConfig parsed =
      ParseConfig("", SavedPath(), {saved.set().begin(), saved.set().end()});
  if (!parsed.errors.empty()) return ToString(parsed.errors.front());
  config::PretrainConfig config = config_;
  for (const std::string& text : saved.set()) {
    const std::string path = text.substr(0, text.find('='));
    if (!MayChange(path)) return absl::StrCat("it sets ", path, ", which is no part of a layout");
    ClearField(&config, path);
  }
  config.MergeFrom(parsed.config);
  const std::vector<ConfigError> errors =
      Validate(config, parsed.locations, ConfigPurpose::kDryRun);
  if (!errors.empty()) return absl::StrCat("it does not fit: ", ToString(errors.front()));
  for (const WrittenField& field : written_) {
    if (!Keeps(config, {field})) return absl::StrCat("it is not ", ToText({field}));
  }
  return "";
}

SavedLayout Chooser::Describe(const PlanningFacts& facts, const LayoutSearch& found) const {
  const FoundLayout& first = found.best.front();
  SavedLayout chosen;
  chosen.set_ranks(ranks_);
  chosen.set_layout(DescribeLayout(first.axes));
  chosen.set_predicted_seconds(first.prediction.seconds.total);
  chosen.set_hardware(facts.source);
  chosen.set_hardware_digest(facts.digest);
  for (const std::string& text : OverridesOf(config_, first.config)) chosen.add_set(text);
  chosen.add_line(absl::StrFormat(
      "layout: %s: the fastest of %s on %s, predicted to take %.3g s a step and %s on a rank%s",
      chosen.layout(), FormatQuantity(found.layouts, "layout"), FormatQuantity(ranks_, "rank"),
      chosen.predicted_seconds(), FormatBytes(first.memory_bytes),
      absl::StrCat(first.host_bytes > 0
                       ? absl::StrCat(", and ", FormatBytes(first.host_bytes), " of the host")
                       : "",
                   first.file_bytes > 0
                       ? absl::StrCat(", and ", FormatBytes(first.file_bytes), " in files")
                       : "")));
  for (size_t i = 1; i < found.best.size(); ++i) {
    const FoundLayout& other = found.best[i];
    chosen.add_line(absl::StrFormat(
        "layout: not %s: %.3g s, %s", DescribeLayout(other.axes), other.prediction.seconds.total,
        WhyItLoses(first.prediction.seconds, other.prediction.seconds)));
  }
  chosen.add_line(absl::StrCat("layout: predicted from ", facts.source));
  if (const std::string losses = DescribeLosses(first.axes); !losses.empty())
    chosen.add_line(absl::StrCat("layout: ", losses));
  const std::vector<std::string> unpriced =
      UnpricedFields(first.config, is_gpu_, KnowsDisk(facts.hardware));
  if (!unpriced.empty())
    chosen.add_line(absl::StrCat("layout: not priced: ", absl::StrJoin(unpriced, ", ")));
  const std::string guesses = NameGuesses(facts.hardware, facts.program);
  if (!guesses.empty()) chosen.add_line(absl::StrCat("layout: ", guesses));
  if (!written_.empty()) {
    chosen.add_line(absl::StrCat("layout: kept as written: ", ToText(written_)));
  }
  return chosen;
}

absl::StatusOr<SavedLayout> Chooser::Search(const PlanningFacts& facts) const {
  config::PretrainConfig resolved = config_;
  ResolveDefaults(&resolved);
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                            CreateTokenizer(ToTokenizerOptions(resolved.data())));
  config::PretrainConfig ranks = config_;
  if (request_.launched > 0) ranks.mutable_parallel()->set_ranks_as(config::RanksAs::processes);
  const Hardware hardware = HardwareOfRun(ranks, ranks_, facts.hardware);
  Planner planner;
  planner.hardware = &hardware;
  planner.program = &facts.program;
  planner.kernels = &facts.kernels;
  planner.is_gpu = is_gpu_;
  SearchOptions options;
  options.ranks = ranks_;
  options.best = kShown;
  options.allows = FilterOf(config_, written_, is_gpu_);
  options.memory_bytes = DefaultMemoryLimit(hardware);
  // Ranks of a processor share the machine's memory.
  options.shares_memory = !is_gpu_ && ranks_here_ == ranks_;
  if (!is_gpu_) options.memory_bytes /= double(ranks_here_);
  MEGATRON_ASSIGN_OR_RETURN(const LayoutSearch found,
                            SearchLayouts(config_, tokenizer->vocab_size(), planner, options));
  if (!found.best.empty()) return Describe(facts, found);
  if (found.layouts == 0 && found.not_allowed > 0)
    return NothingKeeps(config_, written_, ranks_, "rank");
  return NothingFits(config_, tokenizer->vocab_size(), planner, options, found);
}

absl::StatusOr<SavedLayout> Chooser::Choose() {
  MEGATRON_RETURN_IF_ERROR(CountRanks());
  MEGATRON_RETURN_IF_ERROR(CheckBase());
  MEGATRON_ASSIGN_OR_RETURN(const PlanningFacts facts, ReadPlanningFacts(fs_, options_, is_gpu_));
  std::string why_not;
  if (config_.checkpoint().has_save() && fs_.Stat(SavedPath()).ok()) {
    MEGATRON_ASSIGN_OR_RETURN(const std::string text,
                              ReadFileToString(fs_, SavedPath(), kMostFileBytes));
    absl::StatusOr<SavedLayout> saved = ParseSavedLayout(text);
    if (saved.ok()) {
      why_not = WhyNot(*saved);
      if (why_not.empty()) {
        saved->clear_line();
        saved->add_line(absl::StrFormat("layout: %s: kept, as %s has it (predicted %.3g s a step)",
                                        saved->layout(), SavedPath(), saved->predicted_seconds()));
        if (saved->hardware_digest() != facts.digest) {
          saved->add_line(
              absl::StrCat("layout: it was chosen by other figures of the hardware than ",
                           facts.source, "; without that file the next start chooses anew"));
        }
        return saved;
      }
      why_not = absl::StrCat("layout: chosen anew, since ", SavedPath(), " (", saved->layout(),
                             ") is not kept: ", why_not);
    } else {
      why_not = absl::StrCat("layout: chosen anew, since ", SavedPath(),
                             " can't be read: ", saved.status().message());
    }
  }
  MEGATRON_ASSIGN_OR_RETURN(SavedLayout chosen, Search(facts));
  if (!why_not.empty()) chosen.add_line(why_not);
  return chosen;
}

}  // namespace

absl::StatusOr<SavedLayout> ChooseLayout(FileSystem& fs, const LayoutRequest& request) {
  absl::StatusOr<SavedLayout> chosen = Chooser(fs, request).Choose();
  if (chosen.ok()) return chosen;
  return absl::Status(chosen.status().code(),
                      absl::StrCat("train.auto_layout: ", chosen.status().message()));
}

std::vector<std::string> WithLayout(std::vector<std::string> overrides, const SavedLayout& layout) {
  overrides.insert(overrides.end(), layout.set().begin(), layout.set().end());
  return overrides;
}

absl::Status SaveLayout(FileSystem& fs, const std::string& directory, const SavedLayout& layout) {
  const std::string path = JoinPath(directory, kSavedLayoutName);
  const absl::StatusOr<std::string> text = ReadFileToString(fs, path, kMostFileBytes);
  if (text.ok()) {
    const absl::StatusOr<SavedLayout> saved = ParseSavedLayout(*text);
    if (saved.ok() && saved->ranks() == layout.ranks() &&
        std::equal(saved->set().begin(), saved->set().end(), layout.set().begin(),
                   layout.set().end())) {
      return absl::OkStatus();
    }
  }
  return WriteFileAtomically(fs, path, LayoutText(layout));
}

std::string LayoutText(const SavedLayout& layout) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(layout, &text);
  return absl::StrCat("# Chosen by train.auto_layout. Without this file the next start of the run ",
                      "chooses anew.\n", text);
}

absl::StatusOr<SavedLayout> ParseSavedLayout(const std::string& text) {
  SavedLayout layout;
  MEGATRON_RETURN_IF_ERROR(ParseTextProto(text, &layout));
  return layout;
}

}  // namespace megatron
