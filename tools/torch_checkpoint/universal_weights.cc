#include "tools/torch_checkpoint/universal_weights.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "megatron/base/file_system.h"
#include "megatron/base/mapped_file.h"
#include "megatron/base/status_macros.h"
#include "tools/torch_checkpoint/torch_file.h"

namespace megatron {
namespace {

struct Pair {
  const char* theirs;
  const char* ours;
};

// The parameters of a layer.
constexpr Pair kOfLayer[] = {
    {"input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"},
    {"input_layernorm.bias", "self_attention.linear_qkv.layer_norm_bias"},
    {"self_attention.query_key_value.weight", "self_attention.linear_qkv.weight"},
    {"self_attention.query_key_value.bias", "self_attention.linear_qkv.bias"},
    {"self_attention.dense.weight", "self_attention.linear_proj.weight"},
    {"self_attention.dense.bias", "self_attention.linear_proj.bias"},
    {"post_attention_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"},
    {"post_attention_layernorm.bias", "mlp.linear_fc1.layer_norm_bias"},
    {"mlp.dense_h_to_4h.weight", "mlp.linear_fc1.weight"},
    {"mlp.dense_h_to_4h.bias", "mlp.linear_fc1.bias"},
    {"mlp.dense_4h_to_h.weight", "mlp.linear_fc2.weight"},
    {"mlp.dense_4h_to_h.bias", "mlp.linear_fc2.bias"},
};

// All others: of a model without stages, and of one with stages, without the number of their place.
constexpr Pair kOthers[] = {
    {"language_model.embedding.word_embeddings.weight", "embedding.word_embeddings.weight"},
    {"language_model.embedding.position_embeddings.weight", "embedding.position_embeddings.weight"},
    {"language_model.encoder.final_layernorm.weight", "decoder.final_layernorm.weight"},
    {"language_model.encoder.final_layernorm.bias", "decoder.final_layernorm.bias"},
    {"language_model.output_layer.weight", "output_layer.weight"},
    {"tied_modules.embed.word_embeddings.weight", "embedding.word_embeddings.weight"},
    {"tied_modules.embed.position_embeddings.weight", "embedding.position_embeddings.weight"},
};
constexpr Pair kOfStages[] = {
    {"word_embeddings.weight", "embedding.word_embeddings.weight"},
    {"position_embeddings.weight", "embedding.position_embeddings.weight"},
    {"weight", "decoder.final_layernorm.weight"},
    {"bias", "decoder.final_layernorm.bias"},
    {"lm_head.weight", "output_layer.weight"},
};

std::string Counterpart(absl::Span<const Pair> pairs, absl::string_view theirs) {
  for (const Pair& pair : pairs) {
    if (theirs == pair.theirs) return pair.ours;
  }
  return "";
}

// Takes a number and the full stop behind it off the name.
bool ConsumeNumber(absl::string_view* name, int64_t* number) {
  const size_t end = name->find('.');
  if (end == absl::string_view::npos || !absl::SimpleAtoi(name->substr(0, end), number))
    return false;
  name->remove_prefix(end + 1);
  return true;
}

// A parameter of a layer of the model, whose layers' numbers need not begin at 0.
struct OfLayer {
  int64_t number = 0;
  std::string ours;  // empty: it is of no layer
};

OfLayer LayerOf(absl::string_view name) {
  OfLayer of;
  absl::ConsumePrefix(&name, "language_model.encoder.layers.");
  if (ConsumeNumber(&name, &of.number)) of.ours = Counterpart(kOfLayer, name);
  return of;
}

std::string OtherName(absl::string_view name) {
  const std::string ours = Counterpart(kOthers, name);
  int64_t number;
  if (!ours.empty() || !ConsumeNumber(&name, &number)) return ours;
  return Counterpart(kOfStages, name);
}

// Returns what the file of a parameter holds: a tensor, or a dict that has it.
absl::StatusOr<TorchTensor> ParameterOf(const TorchFile& file) {
  const PickleValue* const param = file.root().Get("param");
  return file.TensorOf(param != nullptr ? *param : file.root());
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> UniversalNames(
    const std::vector<std::string>& theirs) {
  std::map<int64_t, int64_t> layers;  // the number of each layer there, and here
  std::vector<absl::string_view> names;
  for (absl::string_view name : theirs) {
    absl::ConsumePrefix(&name, "module.");
    names.push_back(name);
    const OfLayer of = LayerOf(name);
    if (!of.ours.empty()) layers[of.number] = 0;
  }
  int64_t count = 0;
  for (auto& [number, here] : layers) here = count++;
  std::map<std::string, std::string> found, back;
  for (size_t i = 0; i < theirs.size(); ++i) {
    const OfLayer of = LayerOf(names[i]);
    const std::string ours = of.ours.empty()
                                 ? OtherName(names[i])
                                 : absl::StrCat("decoder.layers.", layers[of.number], ".", of.ours);
    if (ours.empty())
      return absl::DataLossError(absl::StrCat("'", theirs[i], "' has no counterpart here"));
    const auto [other, is_new] = back.emplace(ours, theirs[i]);
    if (!is_new) {
      return absl::DataLossError(
          absl::StrCat("'", theirs[i], "' and '", other->second, "' are both ", ours));
    }
    found[theirs[i]] = ours;
  }
  return found;
}

absl::StatusOr<std::unique_ptr<UniversalWeights>> UniversalWeights::Open(
    const std::string& directory) {
  const std::string zero = JoinPath(directory, "zero");
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> listed, PosixFileSystem().List(zero));
  std::vector<std::string> theirs;
  for (const std::string& name : listed) {
    // What is of no parameter: the states of the optimizer that all have in common.
    if (PosixFileSystem().Stat(JoinPath(JoinPath(zero, name), "fp32.pt")).ok())
      theirs.push_back(name);
  }
  const absl::StatusOr<std::map<std::string, std::string>> names = UniversalNames(theirs);
  if (!names.ok()) return absl::DataLossError(absl::StrCat(zero, ": ", names.status().message()));
  std::unique_ptr<UniversalWeights> weights(new UniversalWeights());
  for (const auto& [name, ours] : *names) {
    const std::string folder = JoinPath(zero, name);
    MEGATRON_RETURN_IF_ERROR(weights->Add(ours, JoinPath(folder, "fp32.pt")));
    weights->places_[absl::StrCat("optimizer.state.fp32_param.", ours)] = weights->places_[ours];
    for (const char* state : {"exp_avg", "exp_avg_sq"}) {
      const std::string path = JoinPath(folder, absl::StrCat(state, ".pt"));
      if (!PosixFileSystem().Stat(path).ok()) continue;
      MEGATRON_RETURN_IF_ERROR(
          weights->Add(absl::StrCat("optimizer.state.", state, ".", ours), path));
    }
  }
  return weights;
}

absl::Status UniversalWeights::Add(const std::string& name, const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  MEGATRON_ASSIGN_OR_RETURN(const TorchFile saved, TorchFile::Parse(file.data()),
                            _.SetPrepend() << path << ": ");
  MEGATRON_ASSIGN_OR_RETURN(const TorchTensor tensor, ParameterOf(saved),
                            _.SetPrepend() << path << ": ");
  places_[name] = {path, tensor.shape};
  return absl::OkStatus();
}

std::vector<std::string> UniversalWeights::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

const std::vector<int64_t>* UniversalWeights::ShapeOf(absl::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &found->second.shape;
}

absl::Status UniversalWeights::Read(absl::string_view name, int64_t index,
                                    const Tensor& out) const {
  const Place& place = places_.find(name)->second;
  MEGATRON_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(place.path));
  MEGATRON_ASSIGN_OR_RETURN(const TorchFile saved, TorchFile::Parse(file.data()),
                            _.SetPrepend() << place.path << ": ");
  MEGATRON_ASSIGN_OR_RETURN(const TorchTensor tensor, ParameterOf(saved),
                            _.SetPrepend() << place.path << ": ");
  if (tensor.shape != place.shape)
    return absl::DataLossError(absl::StrCat(place.path, " has changed"));
  const int64_t count = index < 0 ? tensor.numel() : tensor.numel() / tensor.shape[0];
  CopyElements(tensor, index < 0 ? 0 : index * count, count, out, 0);
  return absl::OkStatus();
}

}  // namespace megatron
