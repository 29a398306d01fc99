#include "tools/torch_checkpoint/megatron_layout.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

using Kind = PickleValue::Kind;

// More than any run has.
constexpr int64_t kMostRanks = 16384;

// With these the parts of the model do not have as many layers each, or the first one has an
// optimizer of its own.
constexpr absl::string_view kOthers[] = {
    "decoder_first_pipeline_num_layers",       "decoder_last_pipeline_num_layers",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",          "overlap_param_gather_with_optimizer_step",
};

bool IsGiven(const PickleValue* value) {
  return value != nullptr && !value->is(Kind::kNone) &&
         !(value->is(Kind::kBool) && value->integer == 0);
}

absl::StatusOr<int> RanksOf(const PickleValue& arguments, absl::string_view name) {
  const PickleValue* const value = arguments.Get(name);
  if (value != nullptr && value->is(Kind::kInt) && value->integer >= 1 &&
      value->integer <= kMostRanks)
    return static_cast<int>(value->integer);
  return absl::InvalidArgumentError(
      absl::StrCat("the arguments have no ", name, ", which says how ranks shared the model"));
}

}  // namespace

absl::StatusOr<MegatronLayout> LayoutOfMegatronArgs(const PickleValue& arguments) {
  for (const absl::string_view name : kOthers) {
    if (IsGiven(arguments.Get(name))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "with the argument ", name, " it is not known here how ranks shared the model"));
    }
  }
  MegatronLayout layout;
  MEGATRON_ASSIGN_OR_RETURN(layout.tensor_parallel,
                            RanksOf(arguments, "tensor_model_parallel_size"));
  MEGATRON_ASSIGN_OR_RETURN(layout.stages, RanksOf(arguments, "pipeline_model_parallel_size"));
  constexpr absl::string_view kChunks = "virtual_pipeline_model_parallel_size";
  if (IsGiven(arguments.Get(kChunks))) {
    MEGATRON_ASSIGN_OR_RETURN(layout.chunks, RanksOf(arguments, kChunks));
  }
  layout.expert_tensor_parallel = layout.tensor_parallel;
  constexpr absl::string_view kExpert = "expert_model_parallel_size";
  if (IsGiven(arguments.Get(kExpert))) {
    MEGATRON_ASSIGN_OR_RETURN(layout.expert_parallel, RanksOf(arguments, kExpert));
  }
  constexpr absl::string_view kExpertTensor = "expert_tensor_parallel_size";
  if (IsGiven(arguments.Get(kExpertTensor))) {
    MEGATRON_ASSIGN_OR_RETURN(layout.expert_tensor_parallel, RanksOf(arguments, kExpertTensor));
  }
  return layout;
}

}  // namespace megatron
