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
  int64_t expert = -1;          // the index in the tensor's first dim; -1: it has none of experts
  bool has_own_bucket = false;  // the word table where several stages hold it
  int64_t begin = 0, end = 0;   // in the buffer
};

// The optimizer and the rank that buffers are of.
struct Owner {
  std::string prefix;  // of the optimizer's names
  bool has_dense = true, has_experts = true;
  int64_t group = 0;                           // number of the data-parallel ranks' group
  int64_t stage = 0;                           // of the pipeline
  int64_t tensor_size = 1, tensor_rank = 0;    // of the ranks that share a matrix
  int64_t first_expert = 0, last_expert = -1;  // of those that it has
};

struct Bucket {
  int64_t begin = 0, end = 0, padded_end = 0;
  std::vector<Local> parameters;
};

int64_t Padded(int64_t number, int64_t divisor) {
  return (number + divisor - 1) / divisor * divisor;
}

// A layer's parameters in the order of modules, whether they are there or not.
std::vector<Local> OfLayer(int64_t layer, const BucketTestLayout& layout, const Owner& owner) {
  std::vector<Local> locals;
  const std::string prefix = absl::StrCat("decoder.layers.", layer, ".");
  const auto module = [&](const char* name, const std::vector<const char*>& parameters,
                          int64_t expert = -1) {
    if (!(expert < 0 ? owner.has_dense : owner.has_experts)) return;
    for (const char* parameter : parameters)
      locals.push_back({prefix + name + "." + parameter, expert});
  };
  const std::vector<const char*> norm = {"layer_norm_weight", "layer_norm_bias"};
  const std::vector<const char*> linear = {"weight", "bias"};
  const bool is_engine = layout.transformer_engine;
  if (!is_engine) module("self_attention.linear_qkv", norm);  // input_layernorm
  module("input_layernorm", linear);                          // of latent attention
  module("self_attention.linear_proj", linear);
  if (is_engine) module("self_attention.linear_qkv", norm);
  module("self_attention.linear_qkv", linear);
  module("self_attention.linear_q_proj", linear);
  module("self_attention.linear_q_down_proj", linear);
  for (const char* projection : {"linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj"}) {
    module((std::string("self_attention.") + projection).c_str(), norm);
    module((std::string("self_attention.") + projection).c_str(), linear);
  }
  module("self_attention.q_layernorm", linear);
  module("self_attention.k_layernorm", linear);
  module("pre_mlp_layernorm", linear);
  module("mlp.linear_fc1", norm);
  module("mlp.linear_fc1", linear);
  module("mlp.linear_fc2", linear);
  module("mlp.router", linear);
  if (layout.grouped_experts) {
    for (const char* matrix :
         {"mlp.experts.experts.linear_fc1", "mlp.experts.experts.linear_fc2"}) {
      for (int64_t i = owner.first_expert; i <= owner.last_expert; ++i) module(matrix, linear, i);
    }
  } else {
    for (int64_t i = owner.first_expert; i <= owner.last_expert; ++i) {
      module("mlp.experts.experts.linear_fc1", linear, i);
      module("mlp.experts.experts.linear_fc2", linear, i);
    }
  }
  module("mlp.shared_experts", {"gate_weight"});
  module("mlp.shared_experts.linear_fc1", linear);
  module("mlp.shared_experts.linear_fc2", linear);
  return locals;
}

// The parameters of a part of the model in the order of modules.
std::vector<Local> ParametersOf(const Tensors& tensors, int64_t layers, int64_t part,
                                const BucketTestLayout& layout, const Owner& owner) {
  const int64_t parts = layout.stages * layout.chunks;
  const bool is_tied = tensors.count(kOutput) == 0;
  const bool is_shared = is_tied && parts > 1;
  std::vector<Local> all;
  const auto add = [&](const Local& local) {
    if (tensors.count(local.name) > 0) all.push_back(local);
  };
  const auto add_dense = [&](const std::string& name) {
    if (owner.has_dense) add({name, -1, name == kWords && is_shared});
  };
  if (part == 0) {
    add_dense(kWords);
    add_dense("embedding.position_embeddings.weight");
  }
  CHECK_EQ(layers % parts, 0);
  for (int64_t i = 0; i < layers / parts; ++i) {
    for (const Local& local : OfLayer(part * (layers / parts) + i, layout, owner)) add(local);
  }
  if (part == parts - 1) {
    add_dense("decoder.final_layernorm.weight");
    add_dense("decoder.final_layernorm.bias");
    if (!is_tied) add_dense(kOutput);
    if (is_shared) add_dense(kWords);
  }
  return all;
}

// The dim that tensor-parallel ranks share; -1: each has the whole tensor.
int CutDim(const std::string& name, const TestTensor& tensor) {
  const auto rank = static_cast<int>(tensor.shape.size());
  if (name == kWords || name == kOutput) return 0;
  if (absl::EndsWith(name, "linear_qkv.weight") || absl::EndsWith(name, "linear_qkv.bias"))
    return 0;  // groups of queries
  for (const char* of_heads : {"linear_q_proj.weight", "_up_proj.weight"}) {
    if (absl::EndsWith(name, of_heads)) return 0;
  }
  // With gates the first dim tells gates from the others.
  if (absl::EndsWith(name, "linear_fc1.weight")) return rank - 2;
  if (absl::EndsWith(name, "linear_fc1.bias")) return rank - 1;
  if (absl::EndsWith(name, "linear_proj.weight") || absl::EndsWith(name, "linear_fc2.weight"))
    return rank - 1;
  return -1;
}

// The values that a rank has of a tensor, in their order.
std::vector<float> ValuesOf(const TestTensor& whole, const Local& local, const Owner& owner) {
  TestTensor tensor = whole;
  if (local.expert >= 0) {
    const auto count = static_cast<int64_t>(whole.values.size()) / whole.shape[0];
    const auto begin = whole.values.begin() + local.expert * count;
    tensor = {{whole.shape.begin() + 1, whole.shape.end()}, {begin, begin + count}};
  }
  const int dim = CutDim(local.name, tensor);
  if (dim < 0 || owner.tensor_size == 1) return tensor.values;
  const auto cut = static_cast<size_t>(dim);
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d < cut; ++d) outer *= tensor.shape[d];
  for (size_t d = cut + 1; d < tensor.shape.size(); ++d) inner *= tensor.shape[d];
  CHECK_EQ(tensor.shape[cut] % owner.tensor_size, 0);
  const int64_t run = tensor.shape[cut] / owner.tensor_size * inner;
  std::vector<float> values;
  for (int64_t i = 0; i < outer; ++i) {
    const auto begin = tensor.values.begin() + (i * owner.tensor_size + owner.tensor_rank) * run;
    values.insert(values.end(), begin, begin + run);
  }
  return values;
}

// Lays the parameters into a buffer.
std::vector<Bucket> BucketsOf(const Tensors& tensors, std::vector<Local> parameters,
                              int64_t bucket_size, int64_t data_ranks, const Owner& owner) {
  const int64_t divisor = std::lcm<int64_t>(data_ranks, 128);
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
    const auto size =
        static_cast<int64_t>(ValuesOf(tensors.at(parameter.name), parameter, owner).size());
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

// Adds the buffers of a rank, and the object of its optimizer.
void AddBuffers(const Tensors& tensors, const BucketTestLayout& layout, const Owner& owner,
                const std::vector<int64_t>& adam_steps, DcpWriter* writer) {
  int64_t layers = 0;
  while (tensors.count(
             absl::StrCat("decoder.layers.", layers, ".self_attention.linear_proj.weight")) > 0)
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
  const std::string group =
      absl::StrCat(owner.prefix, "optimizer.distributed.dp_group_idx_", owner.group);
  int64_t buffer = 0;
  for (int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
    const std::vector<Local> parameters =
        ParametersOf(tensors, layers, chunk * layout.stages + owner.stage, layout, owner);
    if (parameters.empty()) continue;
    const int64_t bucket_size = owner.stage == 0 && chunk == 0 ? layout.bucket_size : 0;
    const std::vector<Bucket> buckets =
        BucketsOf(tensors, parameters, bucket_size, layout.data, owner);
    for (size_t i = 0; i < buckets.size(); ++i) {
      const Bucket& bucket = buckets[i];
      for (const std::string state : {"param", "exp_avg", "exp_avg_sq"}) {
        std::vector<float> elements(static_cast<size_t>(bucket.end - bucket.begin), kPadding);
        for (const Local& parameter : bucket.parameters) {
          const std::vector<float> values =
              ValuesOf(state_of(state, parameter.name), parameter, owner);
          std::copy(values.begin(), values.end(),
                    elements.begin() + (parameter.begin - bucket.begin));
        }
        AddBucket(absl::StrCat(group, ".gbuf_idx_", buffer, ".dtype_(", type,
                               ", torch.float32).bucket_idx_", i, ".", state),
                  bucket, elements, layout.data, writer);
      }
    }
    ++buffer;
  }
  TorchFileWriter optimizer;
  optimizer.pickle().BeginList().BeginDict().Text("param_groups").BeginList();
  for (const int64_t step : adam_steps)
    optimizer.pickle().BeginDict().Text("lr").Float(0.5).Text("step").Int(step).EndDict();
  optimizer.pickle().EndList().EndDict().EndList();
  writer->AddObject(group + ".optimizer/shard_0_1", optimizer.Finish());
}

}  // namespace

void AddBuckets(const Tensors& tensors, const BucketTestLayout& layout,
                const std::vector<int64_t>& adam_steps, DcpWriter* writer) {
  int64_t experts = 0;
  for (const auto& [name, tensor] : tensors) {
    if (absl::EndsWith(name, ".experts.experts.linear_fc1.weight")) experts = tensor.shape[0];
  }
  const bool has_two = experts > 0 && layout.expert > 1;
  for (int64_t stage = 0; stage < layout.stages; ++stage) {
    for (int64_t rank = 0; rank < layout.tensor; ++rank) {
      Owner owner;
      owner.prefix = has_two ? "chained_0." : "";
      owner.has_experts = !has_two;
      owner.group = stage * layout.tensor + rank;
      owner.stage = stage;
      owner.tensor_size = layout.tensor;
      owner.tensor_rank = rank;
      owner.last_expert = experts - 1;
      AddBuffers(tensors, layout, owner, adam_steps, writer);
    }
    const int64_t ranks = has_two ? layout.expert * layout.expert_tensor : 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t count = experts / layout.expert;
      Owner owner;
      owner.prefix = "chained_1.";
      owner.has_dense = false;
      owner.group = stage * ranks + rank;
      owner.stage = stage;
      owner.tensor_size = layout.expert_tensor;
      owner.tensor_rank = rank % layout.expert_tensor;
      owner.first_expert = rank / layout.expert_tensor * count;
      owner.last_expert = owner.first_expert + count - 1;
      AddBuffers(tensors, layout, owner, adam_steps, writer);
    }
  }
}

void WriteLayout(const BucketTestLayout& layout, PickleWriter* pickle) {
  pickle->Text("tensor_model_parallel_size").Int(layout.tensor);
  pickle->Text("pipeline_model_parallel_size").Int(layout.stages);
  pickle->Text("expert_model_parallel_size").Int(layout.expert);
  if (layout.expert > 1) pickle->Text("expert_tensor_parallel_size").Int(layout.expert_tensor);
  pickle->Text("virtual_pipeline_model_parallel_size");
  if (layout.chunks > 1) {
    pickle->Int(layout.chunks);
  } else {
    pickle->None();
  }
}

}  // namespace megatron
