#include "tools/torch_checkpoint/bucket_test_writer.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"

namespace megatron {
namespace {

constexpr char kWords[] = "embedding.word_embeddings.weight";
constexpr char kOutput[] = "output_layer.weight";
constexpr float kPadding = 7777;  // what lies between parameters

using Tensors = std::map<std::string, TestTensor>;

// A parameter of a rank.
struct Local {
  std::string name;             // of the tensor that it is a part of
  bool has_own_bucket = false;  // the word table where several stages hold it
  int64_t begin = 0, end = 0;   // in the buffer
};

struct Bucket {
  int64_t begin = 0, end = 0, padded_end = 0;
  std::vector<Local> parameters;
};

int64_t Padded(int64_t number, int64_t divisor) {
  return (number + divisor - 1) / divisor * divisor;
}

// The names of a layer's parameters in the order of modules, whether they are there or not.
std::vector<std::string> NamesOfLayer(int64_t layer, bool transformer_engine) {
  std::vector<std::string> names;
  const std::string prefix = absl::StrCat("decoder.layers.", layer, ".");
  const auto module = [&](const char* name, const std::vector<const char*>& parameters) {
    for (const char* parameter : parameters) names.push_back(prefix + name + "." + parameter);
  };
  const std::vector<const char*> norm = {"layer_norm_weight", "layer_norm_bias"};
  const std::vector<const char*> linear = {"weight", "bias"};
  if (!transformer_engine) module("self_attention.linear_qkv", norm);  // input_layernorm
  module("self_attention.linear_proj", linear);
  if (transformer_engine) module("self_attention.linear_qkv", norm);
  module("self_attention.linear_qkv", linear);
  module("self_attention.q_layernorm", linear);
  module("self_attention.k_layernorm", linear);
  module("mlp.linear_fc1", norm);
  module("mlp.linear_fc1", linear);
  module("mlp.linear_fc2", linear);
  return names;
}

// The parameters of a part of the model in the order of modules.
std::vector<Local> ParametersOf(const Tensors& tensors, int64_t layers, int64_t part,
                                const BucketTestLayout& layout) {
  const int64_t parts = layout.stages * layout.chunks;
  const bool is_tied = tensors.count(kOutput) == 0;
  const bool is_shared = is_tied && parts > 1;
  std::vector<Local> all;
  const auto add = [&](const std::string& name) {
    if (tensors.count(name) > 0) all.push_back({name, name == kWords && is_shared});
  };
  if (part == 0) {
    add(kWords);
    add("embedding.position_embeddings.weight");
  }
  CHECK_EQ(layers % parts, 0);
  for (int64_t i = 0; i < layers / parts; ++i) {
    for (const std::string& name :
         NamesOfLayer(part * (layers / parts) + i, layout.transformer_engine))
      add(name);
  }
  if (part == parts - 1) {
    add("decoder.final_layernorm.weight");
    add("decoder.final_layernorm.bias");
    if (!is_tied) add(kOutput);
    if (is_shared) add(kWords);
  }
  return all;
}

// The dim that tensor-parallel ranks share; -1: each has the whole tensor.
int CutDim(const std::string& name, const TestTensor& tensor) {
  const auto rank = static_cast<int>(tensor.shape.size());
  if (name == kWords || name == kOutput) return 0;
  if (absl::EndsWith(name, "linear_qkv.weight") || absl::EndsWith(name, "linear_qkv.bias"))
    return 0;  // groups of queries
  // With gates the first dim tells gates from the others.
  if (absl::EndsWith(name, "linear_fc1.weight")) return rank - 2;
  if (absl::EndsWith(name, "linear_fc1.bias")) return rank - 1;
  if (absl::EndsWith(name, "linear_proj.weight") || absl::EndsWith(name, "linear_fc2.weight"))
    return rank - 1;
  return -1;
}

// The values of a tensor that a rank has, in their order.
std::vector<float> ValuesOf(const TestTensor& tensor, int dim, int64_t parts, int64_t part) {
  if (dim < 0 || parts == 1) return tensor.values;
  const auto cut = static_cast<size_t>(dim);
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d < cut; ++d) outer *= tensor.shape[d];
  for (size_t d = cut + 1; d < tensor.shape.size(); ++d) inner *= tensor.shape[d];
  CHECK_EQ(tensor.shape[cut] % parts, 0);
  const int64_t run = tensor.shape[cut] / parts * inner;
  std::vector<float> values;
  for (int64_t i = 0; i < outer; ++i) {
    const auto begin = tensor.values.begin() + (i * parts + part) * run;
    values.insert(values.end(), begin, begin + run);
  }
  return values;
}

// Lays the parameters into a buffer.
std::vector<Bucket> BucketsOf(const Tensors& tensors, std::vector<Local> parameters,
                              int64_t bucket_size, const BucketTestLayout& layout) {
  const int64_t divisor = std::lcm<int64_t>(layout.data, 128);
  std::vector<Bucket> buckets;
  Bucket open;
  const auto close = [&](int64_t end) {
    open.end = end;
    open.padded_end = Padded(end, divisor);
    const int64_t next = open.padded_end;
    buckets.push_back(open);
    open = {next};
    return next;
  };
  int64_t at = 0;
  std::reverse(parameters.begin(), parameters.end());
  for (Local& parameter : parameters) {
    const TestTensor& tensor = tensors.at(parameter.name);
    auto size = static_cast<int64_t>(tensor.values.size());
    if (CutDim(parameter.name, tensor) >= 0) size /= layout.tensor;
    at = Padded(at, 64);
    if (parameter.has_own_bucket && !open.parameters.empty()) at = close(at);
    parameter.begin = at;
    parameter.end = at + size;
    open.parameters.push_back(parameter);
    at = parameter.end;
    if ((bucket_size > 0 && at - open.begin >= bucket_size) || parameter.has_own_bucket)
      at = close(at);
  }
  if (!open.parameters.empty()) close(at);
  return buckets;
}

// Adds a state of a bucket, whose elements are given, as data-parallel ranks save it: a part for
// each piece of a parameter, and for what lies between.
void AddBucket(const std::string& name, const Bucket& bucket, const std::vector<float>& elements,
               int64_t ranks, DcpWriter* writer) {
  const int64_t size = bucket.end - bucket.begin;
  const int64_t share = (bucket.padded_end - bucket.begin) / ranks;
  std::vector<int64_t> ends = {size};
  for (int64_t rank = 1; rank < ranks; ++rank) ends.push_back(rank * share);
  for (const Local& parameter : bucket.parameters) {
    ends.push_back(parameter.begin - bucket.begin);
    ends.push_back(parameter.end - bucket.begin);
  }
  std::sort(ends.begin(), ends.end());
  int64_t begin = 0;
  for (const int64_t end : ends) {
    if (end <= begin || end > size) continue;
    writer->AddPiece(name, size, begin, {elements.begin() + begin, elements.begin() + end});
    begin = end;
  }
}

}  // namespace

void AddBuckets(const Tensors& tensors, const BucketTestLayout& layout,
                const std::vector<int64_t>& adam_steps, DcpWriter* writer) {
  int64_t layers = 0;
  while (tensors.count(absl::StrCat("decoder.layers.", layers, ".mlp.linear_fc2.weight")) > 0)
    ++layers;
  bool has_masters = false;
  for (const auto& [name, tensor] : tensors)
    has_masters |= absl::StartsWith(name, "optimizer.state.fp32_param.");
  const char* const type = has_masters ? "torch.bfloat16" : "torch.float32";
  const auto state_of = [&](const std::string& state,
                            const std::string& name) -> const TestTensor& {
    const auto found = tensors.find(
        absl::StrCat("optimizer.state.", state == "param" ? "fp32_param" : state, ".", name));
    return found != tensors.end() ? found->second : tensors.at(name);
  };
  for (int64_t stage = 0; stage < layout.stages; ++stage) {
    for (int64_t rank = 0; rank < layout.tensor; ++rank) {
      const std::string group =
          absl::StrCat("optimizer.distributed.dp_group_idx_", stage * layout.tensor + rank);
      for (int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
        const int64_t bucket_size = stage == 0 && chunk == 0 ? layout.bucket_size : 0;
        const std::vector<Bucket> buckets =
            BucketsOf(tensors, ParametersOf(tensors, layers, chunk * layout.stages + stage, layout),
                      bucket_size, layout);
        for (size_t i = 0; i < buckets.size(); ++i) {
          const Bucket& bucket = buckets[i];
          for (const std::string state : {"param", "exp_avg", "exp_avg_sq"}) {
            std::vector<float> elements(static_cast<size_t>(bucket.end - bucket.begin), kPadding);
            for (const Local& parameter : bucket.parameters) {
              const TestTensor& whole = state_of(state, parameter.name);
              const std::vector<float> values =
                  ValuesOf(whole, CutDim(parameter.name, whole), layout.tensor, rank);
              std::copy(values.begin(), values.end(),
                        elements.begin() + (parameter.begin - bucket.begin));
            }
            AddBucket(absl::StrCat(group, ".gbuf_idx_", chunk, ".dtype_(", type,
                                   ", torch.float32).bucket_idx_", i, ".", state),
                      bucket, elements, layout.data, writer);
          }
        }
      }
      TorchFileWriter optimizer;
      optimizer.pickle().BeginList().BeginDict().Text("param_groups").BeginList();
      for (const int64_t step : adam_steps)
        optimizer.pickle().BeginDict().Text("lr").Float(0.5).Text("step").Int(step).EndDict();
      optimizer.pickle().EndList().EndDict().EndList();
      writer->AddObject(group + ".optimizer/shard_0_1", optimizer.Finish());
    }
  }
}

void WriteLayout(const BucketTestLayout& layout, PickleWriter* pickle) {
  pickle->Text("tensor_model_parallel_size").Int(layout.tensor);
  pickle->Text("pipeline_model_parallel_size").Int(layout.stages);
  pickle->Text("virtual_pipeline_model_parallel_size");
  if (layout.chunks > 1) {
    pickle->Int(layout.chunks);
  } else {
    pickle->None();
  }
}

}  // namespace megatron
