#include "tools/torch_checkpoint/torch_test_writer.h"

#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"

namespace megatron {
namespace {

constexpr char kMetadata[] = "torch.distributed.checkpoint.metadata";
constexpr char kFile[] = "__0_0.distcp";

// Appends the number's bytes, the lowest first.
void PutNumber(uint64_t number, size_t size, std::string* bytes) {
  for (size_t i = 0; i < size; ++i) bytes->push_back(static_cast<char>(number >> (8 * i)));
}

int64_t Product(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

std::vector<int64_t> StridesOf(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// An archive whose entries are stored as they are.
std::string ZipOf(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string bytes, directory;
  for (const auto& [name, contents] : files) {
    const uint64_t at = bytes.size();
    std::string common;
    PutNumber(0, 2, &common);  // flags
    PutNumber(0, 2, &common);  // stored
    PutNumber(0, 4, &common);  // time
    PutNumber(0, 4, &common);  // checksum, which is not read
    PutNumber(contents.size(), 4, &common);
    PutNumber(contents.size(), 4, &common);
    PutNumber(name.size(), 2, &common);
    PutNumber(0, 2, &common);  // extra field
    absl::StrAppend(&bytes, absl::string_view("PK\x03\x04\0\0", 6), common, name, contents);
    absl::StrAppend(&directory, absl::string_view("PK\x01\x02\0\0\0\0", 8), common);
    PutNumber(0, 2, &directory);  // comment
    PutNumber(0, 8, &directory);  // disk and attributes
    PutNumber(at, 4, &directory);
    directory += name;
  }
  const uint64_t begin = bytes.size();
  absl::StrAppend(&bytes, directory, absl::string_view("PK\x05\x06\0\0\0\0", 8));
  PutNumber(files.size(), 2, &bytes);
  PutNumber(files.size(), 2, &bytes);
  PutNumber(directory.size(), 4, &bytes);
  PutNumber(begin, 4, &bytes);
  PutNumber(0, 2, &bytes);  // comment
  return bytes;
}

// Calls body(offset of the part in the tensor) for each part, whose size is given.
template <typename Body>
void ForEachPart(const std::vector<int64_t>& parts, const std::vector<int64_t>& size, Body body) {
  for (int64_t i = 0; i < Product(parts); ++i) {
    std::vector<int64_t> index(parts.size());
    int64_t rest = i;
    for (size_t d = parts.size(); d-- > 0;) {
      index[d] = rest % parts[d];
      rest /= parts[d];
    }
    std::vector<int64_t> offset(parts.size());
    for (size_t d = 0; d < parts.size(); ++d) offset[d] = index[d] * size[d];
    body(index, offset);
  }
}

std::vector<int64_t> SizeOfParts(const TestTensor& tensor, const std::vector<int64_t>& parts) {
  CHECK_EQ(parts.size(), tensor.shape.size());
  std::vector<int64_t> size;
  for (size_t d = 0; d < parts.size(); ++d) {
    CHECK_EQ(tensor.shape[d] % parts[d], 0);
    size.push_back(tensor.shape[d] / parts[d]);
  }
  return size;
}

TestTensor PartOf(const TestTensor& tensor, const std::vector<int64_t>& offset,
                  const std::vector<int64_t>& size) {
  const std::vector<int64_t> strides = StridesOf(tensor.shape);
  TestTensor part = {size, {}};
  for (int64_t i = 0; i < Product(size); ++i) {
    int64_t rest = i, at = 0;
    for (size_t d = size.size(); d-- > 0;) {
      at += (offset[d] + rest % size[d]) * strides[d];
      rest /= size[d];
    }
    part.values.push_back(tensor.values[static_cast<size_t>(at)]);
  }
  return part;
}

}  // namespace

PickleWriter& PickleWriter::Put(absl::string_view bytes) {
  absl::StrAppend(&text_, bytes);
  return *this;
}

PickleWriter& PickleWriter::Int(int64_t value) {
  Put(absl::string_view("\x8a\x08", 2));
  PutNumber(static_cast<uint64_t>(value), 8, &text_);
  return *this;
}

PickleWriter& PickleWriter::Float(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  Put("G");
  for (int i = 56; i >= 0; i -= 8) text_.push_back(static_cast<char>(bits >> i));
  return *this;
}

PickleWriter& PickleWriter::Text(absl::string_view text) {
  Put("X");
  PutNumber(text.size(), 4, &text_);
  return Put(text);
}

PickleWriter& PickleWriter::Global(absl::string_view module, absl::string_view name) {
  return Put(absl::StrCat("c", module, "\n", name, "\n"));
}

PickleWriter& PickleWriter::BeginObject(absl::string_view module, absl::string_view name) {
  return BeginState(module, name).BeginDict();
}

PickleWriter& PickleWriter::BeginState(absl::string_view module, absl::string_view name) {
  return Global(module, name).Put(")\x81");
}

PickleWriter& PickleWriter::Size(const std::vector<int64_t>& sizes) {
  Global("torch", "Size").BeginTuple().BeginTuple();
  for (const int64_t size : sizes) Int(size);
  return EndTuple().EndTuple().Call();
}

TorchFileWriter& TorchFileWriter::Tensor(const TestTensor& tensor) {
  const auto count = static_cast<int64_t>(tensor.values.size());
  CHECK_EQ(count, Product(tensor.shape));
  pickle_.Global("torch._utils", "_rebuild_tensor_v2").BeginTuple();
  pickle_.BeginTuple().Text("storage").Global("torch", "FloatStorage");
  pickle_.Text(absl::StrCat(storages_.size())).Text("cpu").Int(count).EndTuple().Elsewhere();
  pickle_.Int(0).BeginTuple();
  for (const int64_t size : tensor.shape) pickle_.Int(size);
  pickle_.EndTuple().BeginTuple();
  for (const int64_t stride : StridesOf(tensor.shape)) pickle_.Int(stride);
  pickle_.EndTuple().Bool(false);
  pickle_.Global("collections", "OrderedDict").BeginTuple().EndTuple().Call().EndTuple().Call();
  storages_.emplace_back(reinterpret_cast<const char*>(tensor.values.data()),
                         tensor.values.size() * sizeof(float));
  return *this;
}

std::string TorchFileWriter::Finish() const {
  std::vector<std::pair<std::string, std::string>> files = {{"archive/data.pkl", pickle_.Finish()},
                                                            {"archive/byteorder", "little"}};
  for (size_t i = 0; i < storages_.size(); ++i)
    files.emplace_back(absl::StrCat("archive/data/", i), storages_[i]);
  return ZipOf(files);
}

std::string TorchFileOf(const TestTensor& tensor) {
  return TorchFileWriter().Tensor(tensor).Finish();
}

void DcpWriter::AddChunk(const std::vector<int64_t>& offset, const TestTensor& part, Entry* entry) {
  const std::string bytes = TorchFileOf(part);
  entry->chunks.push_back({offset, part.shape, data_.size(), bytes.size()});
  data_ += bytes;
}

void DcpWriter::Add(const std::string& name, const TestTensor& tensor,
                    const std::vector<int64_t>& parts) {
  const std::vector<int64_t> size = SizeOfParts(tensor, parts);
  Entry& entry = entries_[name];
  entry.shape = tensor.shape;
  ForEachPart(parts, size, [&](const std::vector<int64_t>&, const std::vector<int64_t>& offset) {
    AddChunk(offset, PartOf(tensor, offset, size), &entry);
  });
}

void DcpWriter::AddFlattened(const std::string& name, const TestTensor& tensor,
                             const std::vector<int64_t>& parts, int64_t pieces) {
  const std::vector<int64_t> size = SizeOfParts(tensor, parts);
  const int64_t count = Product(size);
  Entry& entry = entries_[name];
  entry.original = tensor.shape;
  entry.shape = parts;
  entry.shape.push_back(count);
  ForEachPart(
      parts, size, [&](const std::vector<int64_t>& index, const std::vector<int64_t>& offset) {
        const TestTensor part = PartOf(tensor, offset, size);
        for (int64_t i = 0; i < pieces; ++i) {
          const int64_t begin = count * i / pieces, end = count * (i + 1) / pieces;
          if (begin == end) continue;
          std::vector<int64_t> at = index, shape(index.size(), 1);
          at.push_back(begin);
          shape.push_back(end - begin);
          AddChunk(at, {shape, {part.values.begin() + begin, part.values.begin() + end}}, &entry);
        }
      });
}

void DcpWriter::AddPiece(const std::string& name, int64_t elements, int64_t begin,
                         const std::vector<float>& values) {
  Entry& entry = entries_[name];
  entry.shape = {elements};
  AddChunk({begin}, {{static_cast<int64_t>(values.size())}, values}, &entry);
}

void DcpWriter::AddObject(const std::string& name, const std::string& file) {
  objects_[name] = {{}, {}, data_.size(), file.size()};
  data_ += file;
}

std::string DcpWriter::Metadata() const {
  PickleWriter pickle;
  pickle.BeginObject(kMetadata, "Metadata").Text("state_dict_metadata").BeginDict();
  for (const auto& [name, entry] : entries_) {
    pickle.Text(name).BeginObject(kMetadata, "TensorStorageMetadata");
    pickle.Text("properties").BeginState(kMetadata, "TensorProperties");
    pickle.BeginTuple().Global("torch", "float32").EndTuple().EndState();
    pickle.Text("size").Size(entry.shape).Text("chunks").BeginList();
    for (const Chunk& chunk : entry.chunks) {
      pickle.BeginObject(kMetadata, "ChunkStorageMetadata");
      pickle.Text("offsets").Size(chunk.offset).Text("sizes").Size(chunk.size).EndObject();
    }
    pickle.EndList().EndObject();
  }
  for (const auto& [name, object] : objects_)
    pickle.Text(name).BeginObject(kMetadata, "BytesStorageMetadata").EndObject();
  pickle.EndDict().Text("storage_data").BeginDict();
  const auto put_place = [&](const Chunk& chunk) {
    pickle.BeginObject("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    pickle.Text("relative_path").Text(kFile);
    pickle.Text("offset").Int(static_cast<int64_t>(chunk.begin));
    pickle.Text("length").Int(static_cast<int64_t>(chunk.length)).EndObject();
  };
  for (const auto& [name, entry] : entries_) {
    for (const Chunk& chunk : entry.chunks) {
      pickle.BeginObject(kMetadata, "MetadataIndex").Text("fqn").Text(name);
      pickle.Text("offset").Size(chunk.offset).Text("index").None().EndObject();
      put_place(chunk);
    }
  }
  for (const auto& [name, object] : objects_) {
    pickle.BeginObject(kMetadata, "MetadataIndex").Text("fqn").Text(name);
    pickle.Text("offset").None().Text("index").None().EndObject();
    put_place(object);
  }
  pickle.EndDict().Text("mcore_data").BeginDict();
  for (const auto& [name, entry] : entries_) {
    pickle.Text(name).BeginDict();
    if (!entry.original.empty()) {
      pickle.Text("nd_reformulated_orig_global_shape").BeginTuple();
      for (const int64_t dim : entry.original) pickle.Int(dim);
      pickle.EndTuple();
    }
    pickle.EndDict();
  }
  return pickle.EndDict().EndObject().Finish();
}

void DcpWriter::Write(const std::string& directory) const {
  std::ofstream(JoinPath(directory, kFile), std::ios::binary) << data_;
  std::ofstream(JoinPath(directory, ".metadata"), std::ios::binary) << Metadata();
}

}  // namespace megatron
