#include "tools/torch_checkpoint/dcp_weights.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "tools/torch_checkpoint/pickle.h"

namespace megatron {
namespace {

using Kind = PickleValue::Kind;
using Sizes = std::vector<int64_t>;
using Tensors = std::map<std::string, DcpTensor, std::less<>>;
using Objects = std::map<std::string, DcpPlace, std::less<>>;

// More parts of one tensor, or of one layer of it, than any layout of ranks makes.
constexpr size_t kMostChunks = 16384;
constexpr uint64_t kMostMetadataBytes = uint64_t{1} << 30;

absl::Status Broken(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("no metadata of a distributed checkpoint: ", what));
}

int64_t Product(const Sizes& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

// Returns a field of an object, or an error.
absl::StatusOr<const PickleValue*> Field(const PickleValue& object, const char* name, Kind kind) {
  const PickleValue* const field = object.Get(name);
  if (field != nullptr && field->is(kind)) return field;
  return Broken(absl::StrCat(name, " is missing, or of another type"));
}

absl::StatusOr<Sizes> SizesField(const PickleValue& object, const char* name) {
  const PickleValue* const field = object.Get(name);
  if (field == nullptr) return Broken(absl::StrCat(name, " is missing"));
  return TorchSizes(*field);
}

// Returns whether the properties are those of a floating type that is read.
bool IsFloating(const PickleValue& tensor) {
  const PickleValue* const properties = tensor.Get("properties");
  const PickleValue* const state = properties == nullptr ? nullptr : properties->state;
  if (state == nullptr) return false;
  const PickleValue* dtype = state->Get("dtype");
  if (state->is(Kind::kTuple) && !state->items.empty()) dtype = state->items[0];
  return dtype != nullptr && dtype->is(Kind::kGlobal) && TorchDType(dtype->text).ok();
}

absl::StatusOr<DcpChunk> ReadChunkOf(const PickleValue& value, const Sizes& shape) {
  DcpChunk chunk;
  MEGATRON_ASSIGN_OR_RETURN(chunk.offset, SizesField(value, "offsets"));
  MEGATRON_ASSIGN_OR_RETURN(chunk.size, SizesField(value, "sizes"));
  bool holds = chunk.offset.size() == shape.size() && chunk.size.size() == shape.size();
  for (size_t d = 0; holds && d < shape.size(); ++d)
    holds = chunk.offset[d] <= shape[d] && chunk.size[d] <= shape[d] - chunk.offset[d];
  if (!holds) return Broken("a part lies outside its tensor");
  return chunk;
}

absl::StatusOr<DcpMetadata> ReadNames(const PickleValue& root) {
  MEGATRON_ASSIGN_OR_RETURN(const PickleValue* const all,
                            Field(root, "state_dict_metadata", Kind::kDict));
  DcpMetadata metadata;
  for (const auto& [name, value] : all->entries) {
    if (!name->is(Kind::kText)) return Broken("a name is no text");
    if (value->Get("chunks") == nullptr) {
      metadata.objects[name->text] = {};
      continue;
    }
    if (!IsFloating(*value)) continue;
    DcpTensor tensor;
    MEGATRON_ASSIGN_OR_RETURN(tensor.shape, SizesField(*value, "size"));
    MEGATRON_ASSIGN_OR_RETURN(const PickleValue* const chunks,
                              Field(*value, "chunks", Kind::kList));
    for (const PickleValue* chunk : chunks->items) {
      MEGATRON_ASSIGN_OR_RETURN(DcpChunk read, ReadChunkOf(*chunk, tensor.shape));
      tensor.chunks.push_back(std::move(read));
    }
    metadata.tensors[name->text] = std::move(tensor);
  }
  return metadata;
}

bool IsPlainName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find('/') == absl::string_view::npos && name.find('\0') == absl::string_view::npos;
}

absl::Status ReadPlace(const PickleValue& info, DcpPlace* place) {
  MEGATRON_ASSIGN_OR_RETURN(const PickleValue* const file,
                            Field(info, "relative_path", Kind::kText));
  MEGATRON_ASSIGN_OR_RETURN(const PickleValue* const begin, Field(info, "offset", Kind::kInt));
  MEGATRON_ASSIGN_OR_RETURN(const PickleValue* const length, Field(info, "length", Kind::kInt));
  const PickleValue* const transforms = info.Get("transform_descriptors");
  if (transforms != nullptr && !transforms->is(Kind::kNone)) return Broken("a part is compressed");
  if (!IsPlainName(file->text)) return Broken("a part is outside the directory");
  if (begin->integer < 0 || length->integer < 0) return Broken("a part has a negative place");
  place->file = file->text;
  place->begin = static_cast<uint64_t>(begin->integer);
  place->length = static_cast<uint64_t>(length->integer);
  return absl::OkStatus();
}

// Gives the chunks and the objects their places.
absl::Status ReadPlaces(const PickleValue& root, Tensors* tensors, Objects* objects) {
  MEGATRON_ASSIGN_OR_RETURN(const PickleValue* const all, Field(root, "storage_data", Kind::kDict));
  std::map<std::pair<absl::string_view, Sizes>, DcpChunk*> chunks;
  for (auto& [name, tensor] : *tensors) {
    for (DcpChunk& chunk : tensor.chunks) {
      if (!chunks.emplace(std::pair{absl::string_view(name), chunk.offset}, &chunk).second)
        return Broken(absl::StrCat("two parts of ", name, " begin at one place"));
    }
  }
  for (const auto& [index, info] : all->entries) {
    MEGATRON_ASSIGN_OR_RETURN(const PickleValue* const name, Field(*index, "fqn", Kind::kText));
    if (const auto object = objects->find(name->text); object != objects->end()) {
      MEGATRON_RETURN_IF_ERROR(ReadPlace(*info, &object->second));
      continue;
    }
    if (tensors->find(name->text) == tensors->end()) continue;
    MEGATRON_ASSIGN_OR_RETURN(Sizes offset, SizesField(*index, "offset"));
    const auto found = chunks.find({absl::string_view(name->text), std::move(offset)});
    if (found == chunks.end()) continue;
    MEGATRON_RETURN_IF_ERROR(ReadPlace(*info, found->second));
  }
  for (const auto& [key, chunk] : chunks) {
    if (chunk->file.empty()) return Broken(absl::StrCat("a part of ", key.first, " has no file"));
  }
  for (auto object = objects->begin(); object != objects->end();)
    object = object->second.file.empty() ? objects->erase(object) : std::next(object);
  return absl::OkStatus();
}

// Gives a tensor whose blocks were flattened its own shape. Returns false unless the blocks divide
// it, and each chunk is of one block.
bool Unflatten(Sizes shape, DcpTensor* tensor) {
  const size_t rank = shape.size();
  if (rank == 0 || tensor->shape.size() != rank + 1) return false;
  Sizes block;
  for (size_t d = 0; d < rank; ++d) {
    if (tensor->shape[d] < 1 || shape[d] % tensor->shape[d] != 0) return false;
    block.push_back(shape[d] / tensor->shape[d]);
  }
  if (tensor->shape[rank] != Product(block)) return false;
  for (const DcpChunk& chunk : tensor->chunks) {
    for (size_t d = 0; d < rank; ++d) {
      if (chunk.size[d] != 1) return false;
    }
  }
  tensor->shape = std::move(shape);
  tensor->block = std::move(block);
  return true;
}

// Reads what Megatron adds to the metadata: the shapes of tensors whose blocks were flattened.
absl::Status ReadFlattened(const PickleValue& root, Tensors* tensors) {
  const PickleValue* const all = root.Get("mcore_data");
  if (all == nullptr || !all->is(Kind::kDict)) return absl::OkStatus();
  for (const auto& [name, value] : all->entries) {
    const PickleValue* const original = value->Get("nd_reformulated_orig_global_shape");
    if (original == nullptr || !name->is(Kind::kText)) continue;
    const auto found = tensors->find(name->text);
    if (found == tensors->end()) continue;
    MEGATRON_ASSIGN_OR_RETURN(Sizes shape, TorchSizes(*original));
    if (!Unflatten(std::move(shape), &found->second))
      return Broken(absl::StrCat(name->text, " is flattened in another way than Megatron's"));
  }
  return absl::OkStatus();
}

bool Overlap(const DcpChunk& a, const DcpChunk& b, size_t first_dim) {
  for (size_t d = first_dim; d < a.offset.size(); ++d) {
    if (a.offset[d] + a.size[d] <= b.offset[d] || b.offset[d] + b.size[d] <= a.offset[d])
      return false;
  }
  return true;
}

// Calls body(element of the chunk, element of the tensor, count) for each run of elements that
// stand one after another in both, of dims `first` and on.
template <typename Body>
void ForEachRun(const Sizes& shape, const DcpChunk& chunk, size_t first, Body body) {
  const size_t rank = shape.size();
  const int64_t run = rank > first ? chunk.size[rank - 1] : 1;
  int64_t rows = 1;
  for (size_t d = first; d + 1 < rank; ++d) rows *= chunk.size[d];
  if (run == 0) return;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t rest = row, stride = rank > first ? shape[rank - 1] : 1;
    int64_t at = rank > first ? chunk.offset[rank - 1] : 0;
    for (size_t d = rank - (rank > first ? 1 : 0); d-- > first;) {
      at += (chunk.offset[d] + rest % chunk.size[d]) * stride;
      rest /= chunk.size[d];
      stride *= shape[d];
    }
    body(row * run, at, run);
  }
}

// Returns the elements of a flattened block that are of this index of the tensor's first dim, or of
// any index where it is negative: the first one, and the one behind the last.
std::pair<int64_t, int64_t> WantedOfBlock(const DcpTensor& tensor, const DcpChunk& chunk,
                                          int64_t index) {
  const int64_t begin = chunk.offset.back(), end = begin + chunk.size.back();
  if (index < 0) return {begin, end};
  const int64_t row = index - chunk.offset[0] * tensor.block[0];
  if (row < 0 || row >= tensor.block[0]) return {begin, begin};
  const int64_t count = Product(tensor.block) / tensor.block[0];
  const int64_t first = std::clamp(row * count, begin, end);
  return {first, std::clamp((row + 1) * count, begin, end)};
}

// Calls body(element of the chunk, element of the result, count) for each run of wanted elements of
// a flattened chunk. The result is the tensor, or one index of its first dim.
template <typename Body>
void ForEachFlatRun(const DcpTensor& tensor, const DcpChunk& chunk, int64_t index, Body body) {
  const Sizes& block = tensor.block;
  const size_t rank = block.size(), first = index < 0 ? 0 : 1;
  const auto [begin, end] = WantedOfBlock(tensor, chunk, index);
  // A run ends with a row of the block. An index of a vector is one element.
  const int64_t width = rank > first ? block[rank - 1] : 1;
  for (int64_t at = begin; at < end;) {
    const int64_t count = std::min(width - at % width, end - at);
    int64_t rest = at, to = 0, stride = 1;
    for (size_t d = rank; d-- > first;) {
      to += (chunk.offset[d] * block[d] + rest % block[d]) * stride;
      rest /= block[d];
      stride *= tensor.shape[d];
    }
    body(at - chunk.offset[rank], to, count);
    at += count;
  }
}

absl::StatusOr<absl::string_view> BytesOf(const MappedFile& file, const DcpPlace& place) {
  const absl::string_view data = file.data();
  if (place.begin <= data.size() && place.length <= data.size() - place.begin)
    return data.substr(place.begin, place.length);
  return absl::DataLossError(absl::StrCat(file.path(), ", byte ", place.begin,
                                          ": the file is shorter than .metadata says"));
}

}  // namespace

absl::StatusOr<DcpMetadata> ParseDcpMetadata(absl::string_view text) {
  MEGATRON_ASSIGN_OR_RETURN(const Pickle pickle, Pickle::Parse(text));
  MEGATRON_ASSIGN_OR_RETURN(DcpMetadata metadata, ReadNames(pickle.root()));
  MEGATRON_RETURN_IF_ERROR(ReadPlaces(pickle.root(), &metadata.tensors, &metadata.objects));
  MEGATRON_RETURN_IF_ERROR(ReadFlattened(pickle.root(), &metadata.tensors));
  return metadata;
}

absl::StatusOr<std::unique_ptr<DcpWeights>> DcpWeights::Open(const std::string& directory) {
  const std::string path = JoinPath(directory, ".metadata");
  MEGATRON_ASSIGN_OR_RETURN(const std::string text,
                            ReadFileToString(PosixFileSystem(), path, kMostMetadataBytes));
  std::unique_ptr<DcpWeights> weights(new DcpWeights(directory));
  MEGATRON_ASSIGN_OR_RETURN(weights->metadata_, ParseDcpMetadata(text),
                            _.SetPrepend() << path << ": ");
  for (const auto& [name, tensor] : weights->metadata_.tensors) {
    for (const DcpChunk& chunk : tensor.chunks) {
      if (weights->files_.find(chunk.file) != weights->files_.end()) continue;
      MEGATRON_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(JoinPath(directory, chunk.file)));
      weights->files_.emplace(chunk.file, std::move(file));
    }
  }
  return weights;
}

std::vector<std::string> DcpWeights::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : metadata_.tensors) names.push_back(name);
  return names;
}

const std::vector<int64_t>* DcpWeights::ShapeOf(absl::string_view name) const {
  const auto found = metadata_.tensors.find(name);
  return found == metadata_.tensors.end() ? nullptr : &found->second.shape;
}

std::vector<std::string> DcpWeights::ObjectNames() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : metadata_.objects) names.push_back(name);
  return names;
}

absl::StatusOr<std::string> DcpWeights::ReadObject(absl::string_view name) const {
  const DcpPlace& place = metadata_.objects.find(name)->second;
  MEGATRON_ASSIGN_OR_RETURN(const MappedFile file,
                            MappedFile::Open(JoinPath(directory_, place.file)));
  MEGATRON_ASSIGN_OR_RETURN(const absl::string_view bytes, BytesOf(file, place));
  return std::string(bytes);
}

absl::StatusOr<TorchTensor> DcpWeights::PartOf(const DcpChunk& chunk) const {
  const MappedFile& file = files_.find(chunk.file)->second;
  const auto broken = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(file.path(), ", byte ", chunk.begin, ": ", what));
  };
  MEGATRON_ASSIGN_OR_RETURN(const absl::string_view bytes, BytesOf(file, chunk));
  const absl::StatusOr<TorchFile> saved = TorchFile::Parse(bytes);
  if (!saved.ok()) return broken(saved.status().message());
  absl::StatusOr<TorchTensor> part = saved->TensorOf(saved->root());
  if (!part.ok()) return broken(part.status().message());
  if (part->shape != chunk.size) return broken("the part has another shape than .metadata says");
  return part;
}

void DcpWeights::Forget(const DcpChunk& chunk) const {
  const MappedFile& file = files_.find(chunk.file)->second;
  file.Forget(file.data().substr(chunk.begin, chunk.length));
}

absl::Status DcpWeights::ReadChunk(const DcpTensor& tensor, const DcpChunk& chunk, int64_t index,
                                   const Tensor& out) const {
  MEGATRON_ASSIGN_OR_RETURN(const TorchTensor part, PartOf(chunk));
  if (!tensor.block.empty()) {
    ForEachFlatRun(tensor, chunk, index, [&](int64_t from, int64_t to, int64_t count) {
      CopyElements(part, from, count, out, to);
    });
  } else if (index < 0) {
    ForEachRun(tensor.shape, chunk, 0, [&](int64_t from, int64_t to, int64_t count) {
      CopyElements(part, from, count, out, to);
    });
  } else {
    // The part of one index of the first dim.
    const int64_t skipped = (index - chunk.offset[0]) * (Product(chunk.size) / chunk.size[0]);
    ForEachRun(tensor.shape, chunk, 1, [&](int64_t from, int64_t to, int64_t count) {
      CopyElements(part, skipped + from, count, out, to);
    });
  }
  Forget(chunk);
  return absl::OkStatus();
}

absl::Status DcpWeights::Read(absl::string_view name, int64_t index, const Tensor& out) const {
  const DcpTensor& tensor = metadata_.tensors.find(name)->second;
  const size_t first = index < 0 ? 0 : 1;
  const bool is_flat = !tensor.block.empty();
  std::vector<const DcpChunk*> chunks;
  int64_t all = 1;
  for (size_t d = first; d < tensor.shape.size(); ++d) all *= tensor.shape[d];
  int64_t elements = 0;
  for (const DcpChunk& chunk : tensor.chunks) {
    int64_t count = 1;
    if (is_flat) {
      const auto [begin, end] = WantedOfBlock(tensor, chunk, index);
      if (begin == end) continue;
      count = end - begin;
    } else {
      const bool has_index =
          index < 0 || (chunk.offset[0] <= index && index - chunk.offset[0] < chunk.size[0]);
      if (!has_index) continue;
      for (size_t d = first; d < chunk.size.size(); ++d) count *= chunk.size[d];
    }
    chunks.push_back(&chunk);
    elements += count;
    if (elements > all) break;  // so that no sum leaves 64 bits
  }
  bool holds = elements == all && chunks.size() <= kMostChunks;
  for (size_t i = 0; holds && i < chunks.size(); ++i) {
    for (size_t j = 0; holds && j < i; ++j) {
      holds = !Overlap(*chunks[i], *chunks[j], is_flat ? 0 : first);
    }
  }
  if (!holds)
    return absl::DataLossError(absl::StrCat("the parts of ", name, " overlap or leave holes"));
  for (const DcpChunk* chunk : chunks) {
    MEGATRON_RETURN_IF_ERROR(ReadChunk(tensor, *chunk, index, out));
  }
  return absl::OkStatus();
}

absl::Status DcpWeights::ReadElements(absl::string_view name, int64_t begin,
                                      const Tensor& out) const {
  const DcpTensor& tensor = metadata_.tensors.find(name)->second;
  const int64_t end = begin + out.numel();
  CHECK(tensor.shape.size() == 1 && begin >= 0 && end <= tensor.shape[0]) << name;
  const absl::Status broken =
      absl::DataLossError(absl::StrCat("the parts of ", name, " overlap or leave holes"));
  if (!tensor.block.empty()) return broken;
  std::vector<const DcpChunk*> chunks;
  for (const DcpChunk& chunk : tensor.chunks) {
    if (chunk.offset[0] < end && begin < chunk.offset[0] + chunk.size[0]) chunks.push_back(&chunk);
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const DcpChunk* a, const DcpChunk* b) { return a->offset[0] < b->offset[0]; });
  int64_t next = begin;
  for (const DcpChunk* chunk : chunks) {
    // The first of them may begin earlier.
    const int64_t skipped = next - chunk->offset[0];
    if (skipped < 0 || (skipped > 0 && next > begin)) return broken;
    MEGATRON_ASSIGN_OR_RETURN(const TorchTensor part, PartOf(*chunk));
    const int64_t last = std::min(end, chunk->offset[0] + chunk->size[0]);
    CopyElements(part, skipped, last - next, out, next - begin);
    Forget(*chunk);
    next = last;
  }
  return next == end ? absl::OkStatus() : broken;
}

}  // namespace megatron
