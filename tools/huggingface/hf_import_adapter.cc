#include "tools/huggingface/hf_import_adapter.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/safetensors_reader.h"
#include "megatron/models/huggingface/hf_adapter.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/stream.h"

namespace megatron {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;

const SafetensorsTensor* Find(const SafetensorsFile& file, const std::string& name) {
  for (const SafetensorsTensor& tensor : file.header().tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

absl::StatusOr<std::vector<float>> ValuesOf(const SafetensorsFile& file,
                                            const SafetensorsTensor& tensor,
                                            const std::vector<int64_t>& shape) {
  DType dtype;
  if (!FromSafetensorsName(tensor.dtype, &dtype) ||
      (dtype != DType::kFloat32 && dtype != DType::kBFloat16 && dtype != DType::kFloat16)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", tensor.name, "' is ", tensor.dtype, "; F32, BF16 and F16 can be read"));
  }
  if (tensor.shape != shape) {
    return absl::DataLossError(absl::StrCat("'", tensor.name, "' is [",
                                            absl::StrJoin(tensor.shape, ", "), "] and not [",
                                            absl::StrJoin(shape, ", "), "]"));
  }
  const absl::string_view bytes = file.Bytes(tensor);
  std::vector<int64_t> aligned((bytes.size() + 7) / 8);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const int64_t count = Shape(shape).numel();
  std::vector<float> values(static_cast<size_t>(count));
  ops::Copy(Stream::Inline(), Tensor(aligned.data(), dtype, {count}),
            Tensor(values.data(), DType::kFloat32, {count}));
  return values;
}

// An adapter there, as far as the file has it.
struct Part {
  HfAdapter adapter;
  std::vector<float> a, b;  // empty: the file has none
};

std::string ModuleOf(const HfAdapter& adapter) {
  const std::vector<std::string> parts = absl::StrSplit(adapter.a.parameter, '.');
  return parts[parts.size() - 4];  // in front of adapter.linear_in.weight
}

// An adapter of a model with fewer layers has names and shapes that fit, too.
absl::Status CheckAllLayers(const std::map<std::string, std::vector<Part>>& layers) {
  std::set<std::string> modules;
  for (const auto& [name, parts] : layers) {
    for (const Part& part : parts) {
      if (!part.a.empty()) modules.insert(HfModuleOf(part.adapter));
    }
  }
  for (const auto& [name, parts] : layers) {
    for (const Part& part : parts) {
      if (!part.a.empty() || modules.count(HfModuleOf(part.adapter)) == 0) continue;
      return absl::DataLossError(
          absl::StrCat("'", part.adapter.a.name,
                       "' is missing, which other layers have: this is an adapter of another "
                       "model, or adapter_config.json lacks \"layers_to_transform\""));
    }
  }
  return absl::OkStatus();
}

// Returns the number of different A that the parts of one layer of ours need.
int64_t DifferentA(const std::vector<Part>& parts) {
  const Part* first = nullptr;
  for (const Part& part : parts) {
    if (part.a.empty()) continue;
    if (first == nullptr) first = &part;
    if (part.a != first->a) return static_cast<int64_t>(parts.size());
  }
  return 1;
}

}  // namespace

absl::StatusOr<HfImportAdapter> HfImportAdapter::Open(FileSystem& fs, const std::string& directory,
                                                      absl::string_view model_type,
                                                      ModelOptions* model) {
  const std::string config_path = JoinPath(directory, kHfAdapterConfigFileName);
  MEGATRON_ASSIGN_OR_RETURN(const std::string text,
                            ReadFileToString(fs, config_path, kMaxConfigBytes));
  MEGATRON_ASSIGN_OR_RETURN(const HfAdapterConfig config, ParseHfAdapterConfig(text),
                            _.SetPrepend() << config_path << ": ");
  const std::string path = JoinPath(directory, kHfAdapterWeightsFileName);
  MEGATRON_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  ModelOptions all = *model;
  all.transformer.lora = {
      config.rank, config.alpha, {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}};
  // By our parameter A.
  std::map<std::string, std::vector<Part>> layers;
  std::set<std::string> modules, read;
  for (HfAdapter& adapter : HfAdapters(all, model_type)) {
    Part part = {std::move(adapter), {}, {}};
    const SafetensorsTensor* const a = Find(file, part.adapter.a.name);
    const SafetensorsTensor* const b = Find(file, part.adapter.b.name);
    if ((a == nullptr) != (b == nullptr)) {
      return absl::DataLossError(absl::StrCat(
          path, ": '", (a == nullptr ? part.adapter.a : part.adapter.b).name, "' is missing"));
    }
    if (a != nullptr) {
      MEGATRON_ASSIGN_OR_RETURN(part.a, ValuesOf(file, *a, part.adapter.a.shape),
                                _.SetPrepend() << path << ": ");
      MEGATRON_ASSIGN_OR_RETURN(part.b, ValuesOf(file, *b, part.adapter.b.shape),
                                _.SetPrepend() << path << ": ");
      modules.insert(ModuleOf(part.adapter));
      read.insert({a->name, b->name});
    }
    layers[part.adapter.a.parameter].push_back(std::move(part));
  }
  for (const SafetensorsTensor& tensor : file.header().tensors) {
    if (read.count(tensor.name) == 0) {
      return absl::DataLossError(
          absl::StrCat(path, ": '", tensor.name, "' has no place in this model"));
    }
  }
  if (modules.empty()) return absl::DataLossError(absl::StrCat(path, ": holds no adapter"));
  if (config.is_of_all_layers) {
    MEGATRON_RETURN_IF_ERROR(CheckAllLayers(layers), _.SetPrepend() << path << ": ");
  }
  int64_t copies = 1;
  for (const auto& [name, parts] : layers) copies = std::max(copies, DifferentA(parts));
  model->transformer.lora = {config.rank * copies,
                             config.alpha * static_cast<double>(copies),
                             {modules.begin(), modules.end()}};
  HfImportAdapter imported;
  const int64_t rank = config.rank, dim = rank * copies;
  for (const auto& [name, parts] : layers) {
    const HfAdapter& first = parts[0].adapter;
    if (modules.count(ModuleOf(first)) == 0) continue;
    const int64_t inputs = first.a.columns;
    Values a = {{dim, inputs}, std::vector<float>(static_cast<size_t>(dim * inputs))};
    Values b;
    b.shape = first.b.parameter_shape;
    b.shape[-1] = dim;
    b.values.resize(static_cast<size_t>(b.shape.numel()));
    const bool same = DifferentA(parts) == 1;
    for (size_t p = 0; p < parts.size(); ++p) {
      const Part& part = parts[p];
      if (part.a.empty()) continue;
      const int64_t begin = same ? 0 : static_cast<int64_t>(p) * rank;
      std::copy(part.a.begin(), part.a.end(), a.values.begin() + begin * inputs);
      for (int64_t r = 0; r < part.adapter.b.rows; ++r) {
        std::copy_n(part.b.begin() + r * rank, rank,
                    b.values.begin() + part.adapter.b.row(r) * dim + begin);
      }
    }
    imported.parameters_[name] = std::move(a);
    imported.parameters_[first.b.parameter] = std::move(b);
  }
  return imported;
}

std::vector<ShardedTensor> HfImportAdapter::Blocks(DType dtype) const {
  std::vector<ShardedTensor> blocks;
  const auto append = [&](const std::string& name, DType type, const Values& values) {
    ShardedTensor block;
    block.name = name;
    block.tensor = Tensor(nullptr, type, values.shape, {DeviceType::kMeta});
    block.global_shape = block.offset = values.shape;
    for (int d = 0; d < block.offset.rank(); ++d) block.offset[d] = 0;
    block.source = [&values](const Tensor& out) {
      const Tensor from(const_cast<float*>(values.values.data()), DType::kFloat32, values.shape);
      ops::Copy(Stream::Inline(), from, out);
      return absl::OkStatus();
    };
    blocks.push_back(std::move(block));
  };
  for (const auto& [name, values] : parameters_) {
    append(name, dtype, values);
    if (dtype != DType::kFloat32)
      append(absl::StrCat("optimizer.state.fp32_param.", name), DType::kFloat32, values);
  }
  return blocks;
}

}  // namespace megatron
