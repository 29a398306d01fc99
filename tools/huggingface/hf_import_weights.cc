#include "tools/huggingface/hf_import_weights.h"

#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/status_macros.h"
#include "tools/common/interrupt.h"

namespace megatron {
namespace {

constexpr size_t kProblemsShown = 20;

std::string Describe(absl::string_view dtype, const std::vector<int64_t>& shape) {
  return absl::StrCat(dtype, " [", absl::StrJoin(shape, ", "), "]");
}

absl::Status Report(const std::string& directory, std::vector<std::string> problems) {
  if (problems.empty()) return absl::OkStatus();
  const size_t count = problems.size();
  if (count > kProblemsShown) {
    problems.resize(kProblemsShown);
    problems.push_back(absl::StrCat("and ", count - kProblemsShown, " more"));
  }
  return absl::DataLossError(
      absl::StrCat(directory, ": the files do not hold the model that config.json describes:\n  ",
                   absl::StrJoin(problems, "\n  ")));
}

ShardedTensor WholeTensor(const std::string& name, DType dtype, const Shape& shape) {
  ShardedTensor block;
  block.name = name;
  block.tensor = Tensor(nullptr, dtype, shape, {DeviceType::kMeta});
  block.global_shape = block.offset = shape;
  for (int d = 0; d < block.offset.rank(); ++d) block.offset[d] = 0;
  return block;
}

void Widen(const Tensor& from, const Tensor& to) {
  float* const out = to.data<float>();
  for (int64_t i = 0; i < from.numel(); ++i) {
    out[i] = from.dtype() == DType::kBFloat16 ? ToFloat(from.data<BFloat16>()[i])
                                              : ToFloat(from.data<Float16>()[i]);
  }
}

}  // namespace

absl::StatusOr<HfImportWeights> HfImportWeights::Open(const std::string& directory,
                                                      const ModelOptions& model) {
  MEGATRON_ASSIGN_OR_RETURN(SafetensorsModel files, SafetensorsModel::Open(directory));
  HfImportWeights weights(std::move(files));
  MEGATRON_RETURN_IF_ERROR(weights.Match(directory, model));
  MEGATRON_RETURN_IF_ERROR(weights.FindType(directory));
  return weights;
}

absl::Status HfImportWeights::Match(const std::string& directory, const ModelOptions& model) {
  std::vector<std::string> problems;
  std::set<absl::string_view> rest;
  for (absl::string_view name : files_->Names()) rest.insert(name);
  for (HfTensor& tensor : HfTensors(model)) {
    const SafetensorsTensor* file = files_->Find(tensor.name);
    const std::string other_name = HfNameWithoutHead(tensor);
    if (file == nullptr && !other_name.empty()) file = files_->Find(other_name);
    if (file == nullptr) {
      problems.push_back(absl::StrCat("'", tensor.name, "' is missing"));
      continue;
    }
    rest.erase(file->name);
    const absl::string_view dtype = found_.empty() ? file->dtype : found_[0].file->dtype;
    if (file->shape != tensor.shape || file->dtype != dtype) {
      problems.push_back(absl::StrCat("'", file->name, "' is ", Describe(file->dtype, file->shape),
                                      " and not ", Describe(dtype, tensor.shape)));
    }
    found_.push_back({std::move(tensor), file});
  }
  for (absl::string_view name : rest) {
    if (IsHfBuffer(name)) continue;
    const auto original = std::find_if(found_.begin(), found_.end(), [&](const Found& found) {
      return found.tensor.parameter == HfCopiedParameter(name);
    });
    const bool copy = model.tied_embeddings && original != found_.end() &&
                      files_->Bytes(*files_->Find(name)) == files_->Bytes(*original->file);
    if (!copy) problems.push_back(absl::StrCat("'", name, "' has no place in this model"));
  }
  return Report(directory, std::move(problems));
}

absl::Status HfImportWeights::FindType(const std::string& directory) {
  const absl::string_view name = found_[0].file->dtype;
  if (FromSafetensorsName(name, &dtype_) &&
      (dtype_ == DType::kFloat32 || dtype_ == DType::kBFloat16 || dtype_ == DType::kFloat16)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(directory, ": the weights are ", name, "; F32, BF16 and F16 can be trained"));
}

void HfImportWeights::FillParameter(const std::vector<const Found*>& parts,
                                    const Tensor& out) const {
  for (const Found* part : parts) {
    CopyFromHf(part->tensor, SizeOf(dtype_), files_->Bytes(*part->file).data(),
               static_cast<char*>(out.raw()));
    files_->Forget(*part->file);
  }
}

std::vector<ShardedTensor> HfImportWeights::Blocks() const {
  std::map<std::string, std::vector<const Found*>> parameters;
  for (const Found& found : found_) parameters[found.tensor.parameter].push_back(&found);
  std::vector<ShardedTensor> blocks;
  for (const auto& [name, parts] : parameters) {
    const Shape& shape = parts[0]->tensor.parameter_shape;
    blocks.push_back(WholeTensor(name, dtype_, shape));
    blocks.back().source = [this, parts = parts](const Tensor& out) {
      FillParameter(parts, out);
      return CheckInterrupted();
    };
    if (dtype_ == DType::kFloat32) continue;
    blocks.push_back(
        WholeTensor(absl::StrCat("optimizer.state.fp32_param.", name), DType::kFloat32, shape));
    blocks.back().source = [this, parts = parts](const Tensor& out) {
      std::vector<int64_t> memory(static_cast<size_t>(out.numel() * SizeOf(dtype_) + 7) / 8);
      const Tensor parameter(memory.data(), dtype_, out.shape());
      FillParameter(parts, parameter);
      Widen(parameter, out);
      return CheckInterrupted();
    };
  }
  return blocks;
}

}  // namespace megatron
