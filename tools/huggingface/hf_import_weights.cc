#include "tools/huggingface/hf_import_weights.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/status_macros.h"
#include "tools/common/interrupt.h"
#include "tools/huggingface/block_float8.h"
#include "tools/huggingface/mxfp4.h"

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

// The layers behind those that num_hidden_layers counts are those of multi-token prediction of
// DeepSeek-V3, which transformers leaves out, too. Qwen3-Next's have names of their own.
bool IsOfNextTokens(absl::string_view name, const ModelOptions& model) {
  if (model.transformer.output_gate && absl::StartsWith(name, "mtp.")) return true;
  return model.transformer.moe.router.score == ops::RouterScore::kSigmoid &&
         absl::StartsWith(name, absl::StrCat("model.layers.", model.transformer.num_layers, "."));
}

ShardedTensor PartOf(const HfTensor& tensor, const std::string& name, DType dtype) {
  ShardedTensor block;
  block.name = name;
  block.tensor = Tensor(nullptr, dtype, tensor.part_shape(), {DeviceType::kMeta});
  block.global_shape = tensor.parameter_shape;
  block.offset = tensor.part_offset();
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
                                                      const ModelOptions& model,
                                                      const std::string& model_type) {
  MEGATRON_ASSIGN_OR_RETURN(SafetensorsModel files, SafetensorsModel::Open(directory));
  HfImportWeights weights(std::move(files));
  MEGATRON_RETURN_IF_ERROR(weights.Match(directory, model, model_type));
  MEGATRON_RETURN_IF_ERROR(weights.FindType(directory));
  return weights;
}

bool HfImportWeights::TakeMxfp4(HfTensor* tensor, std::set<absl::string_view>* rest,
                                std::vector<std::string>* problems) {
  if (tensor->transposed == 0 || files_->Find(tensor->name) != nullptr) return false;
  const SafetensorsTensor* const blocks = files_->Find(tensor->name + "_blocks");
  const SafetensorsTensor* const scales = files_->Find(tensor->name + "_scales");
  if (blocks == nullptr || scales == nullptr) return false;
  const std::vector<int64_t> shape = {tensor->transposed, tensor->rows / tensor->transposed,
                                      tensor->columns / kMxfp4Block};
  std::vector<int64_t> block_shape = shape;
  block_shape.push_back(kMxfp4Block / 2);
  if (tensor->columns % kMxfp4Block != 0 || scales->shape != shape || scales->dtype != "U8" ||
      blocks->shape != block_shape || blocks->dtype != "U8") {
    problems->push_back(absl::StrCat("'", blocks->name, "' is no MXFP4 of ", tensor->name));
  }
  rest->erase(blocks->name);
  rest->erase(scales->name);
  found_.push_back({std::move(*tensor), blocks, scales});
  return true;
}

bool HfImportWeights::TakeFloat8(HfTensor* tensor, std::set<absl::string_view>* rest,
                                 std::vector<std::string>* problems) {
  const SafetensorsTensor* const codes = files_->Find(tensor->name);
  if (codes == nullptr || codes->dtype != "F8_E4M3" || tensor->transposed > 0) return false;
  const SafetensorsTensor* const scales = files_->Find(tensor->name + "_scale_inv");
  if (scales == nullptr) return false;
  if (codes->shape != tensor->shape || scales->shape != Float8ScalesShape(*tensor) ||
      scales->dtype != SafetensorsName(DType::kFloat32)) {
    problems->push_back(absl::StrCat("'", codes->name, "' and '", scales->name,
                                     "' are no blocks of 8-bit floats of ",
                                     Describe(codes->dtype, tensor->shape)));
  }
  rest->erase(codes->name);
  rest->erase(scales->name);
  found_.push_back({std::move(*tensor), codes, scales});
  return true;
}

absl::Status HfImportWeights::Match(const std::string& directory, const ModelOptions& model,
                                    const std::string& model_type) {
  std::vector<std::string> problems;
  std::set<absl::string_view> rest;
  for (absl::string_view name : files_->Names()) rest.insert(name);
  for (HfTensor& tensor : HfTensors(model, model_type)) {
    const SafetensorsTensor* file = files_->Find(tensor.name);
    const std::string other_name = HfNameWithoutHead(tensor);
    if (file == nullptr && !other_name.empty()) file = files_->Find(other_name);
    if (TakeMxfp4(&tensor, &rest, &problems) || TakeFloat8(&tensor, &rest, &problems)) continue;
    if (file == nullptr) {
      problems.push_back(absl::StrCat("'", tensor.name, "' is missing"));
      continue;
    }
    rest.erase(file->name);
    const absl::string_view dtype = found_.empty() ? file->dtype : found_[0].file->dtype;
    const bool has_type = file->dtype == dtype ||
                          (tensor.is_state && file->dtype == SafetensorsName(DType::kFloat32));
    if (file->shape != tensor.shape || !has_type) {
      problems.push_back(absl::StrCat("'", file->name, "' is ", Describe(file->dtype, file->shape),
                                      " and not ", Describe(dtype, tensor.shape)));
    }
    found_.push_back({std::move(tensor), file});
  }
  for (absl::string_view name : rest) {
    if (IsHfBuffer(name) || IsOfNextTokens(name, model)) continue;
    const std::string copied = HfCopiedParameter(name);
    const auto original = copied.empty() || !model.tied_embeddings
                              ? found_.end()
                              : std::find_if(found_.begin(), found_.end(), [&](const Found& found) {
                                  return found.tensor.parameter == copied;
                                });
    if (original == found_.end()) {
      problems.push_back(absl::StrCat("'", name, "' has no place in this model"));
    } else if (files_->Bytes(*files_->Find(name)) != files_->Bytes(*original->file)) {
      problems.push_back(absl::StrCat("'", name, "' differs from ",
                                      copied == "output_layer.bias" ? "" : "the embedding ", "'",
                                      original->file->name, "', and tie_word_embeddings is true"));
    }
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
    if (part->scales != nullptr) {
      (part->is_mxfp4() ? DequantizeMxfp4 : DequantizeFloat8Blocks)(
          part->tensor, files_->Bytes(*part->file), files_->Bytes(*part->scales), out);
      files_->Forget(*part->file);
      files_->Forget(*part->scales);
      continue;
    }
    CopyFromHf(part->tensor, SizeOf(dtype_), files_->Bytes(*part->file).data(),
               static_cast<char*>(out.raw()));
    files_->Forget(*part->file);
  }
}

void HfImportWeights::FillState(const Found& found, const Tensor& out) const {
  const absl::string_view bytes = files_->Bytes(*found.file);
  std::vector<int64_t> aligned((bytes.size() + 7) / 8);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  DType dtype = DType::kFloat32;
  FromSafetensorsName(found.file->dtype, &dtype);
  if (dtype == DType::kFloat32) {
    std::memcpy(out.raw(), aligned.data(), bytes.size());
  } else {
    Widen(Tensor(aligned.data(), dtype, out.shape()), out);
  }
}

std::vector<ShardedTensor> HfImportWeights::Blocks() const {
  // The tensors of each part of each parameter, which is read and saved at once.
  std::map<std::pair<std::string, int64_t>, std::vector<const Found*>> parts_of;
  for (const Found& found : found_)
    parts_of[{found.tensor.parameter, found.tensor.part}].push_back(&found);
  std::vector<ShardedTensor> blocks;
  for (const auto& [place, parts] : parts_of) {
    const HfTensor& tensor = parts[0]->tensor;
    if (tensor.is_state) {
      blocks.push_back(PartOf(tensor, tensor.parameter, DType::kFloat32));
      blocks.back().source = [this, part = parts[0]](const Tensor& out) {
        FillState(*part, out);
        return CheckInterrupted();
      };
      continue;
    }
    blocks.push_back(PartOf(tensor, tensor.parameter, dtype_));
    blocks.back().source = [this, parts = parts](const Tensor& out) {
      FillParameter(parts, out);
      return CheckInterrupted();
    };
    if (dtype_ == DType::kFloat32) continue;
    const std::string master = absl::StrCat("optimizer.state.fp32_param.", tensor.parameter);
    blocks.push_back(PartOf(tensor, master, DType::kFloat32));
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
