#include "megatron/islands/global_copy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/socket/wire.h"

namespace megatron {
namespace {

constexpr absl::string_view kMagic = "MGNOUTR2";
constexpr size_t kMostPiece = size_t{1} << 22;
constexpr int64_t kMostHeader = int64_t{1} << 26;

absl::string_view BytesOf(absl::Span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string TemporaryName(const std::string& path) { return path + ".tmp"; }

Tensor View(float* values, int64_t count) { return Tensor(values, DType::kFloat32, {count}); }

absl::Status WriteParts(FileSystem& fs, const std::string& path,
                        const std::vector<absl::string_view>& parts) {
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, fs.Create(path));
  uint32_t crc = 0;
  for (absl::string_view part : parts) {
    while (!part.empty()) {
      const absl::string_view piece = part.substr(0, kMostPiece);
      MEGATRON_RETURN_IF_ERROR(file->Append(piece));
      crc = ExtendCrc32c(crc, piece);
      part.remove_prefix(piece.size());
    }
  }
  WireWriter end;
  end.Put(crc);
  MEGATRON_RETURN_IF_ERROR(file->Append(end.Take()));
  MEGATRON_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

// Reads a file from its beginning on, and keeps the checksum of what it has read.
class Reader {
 public:
  explicit Reader(const RandomAccessFile& file) : file_(file) {}

  absl::Status Read(absl::Span<char> out) {
    if (file_.size() - at_ < static_cast<int64_t>(out.size()))
      return absl::DataLossError("the file is cut off");
    while (!out.empty()) {
      const absl::Span<char> piece = out.subspan(0, kMostPiece);
      MEGATRON_RETURN_IF_ERROR(file_.ReadAt(at_, piece));
      crc_ = ExtendCrc32c(crc_, {piece.data(), piece.size()});
      at_ += static_cast<int64_t>(piece.size());
      out.remove_prefix(piece.size());
    }
    return absl::OkStatus();
  }
  uint32_t crc() const { return crc_; }
  bool at_end() const { return at_ == file_.size(); }

 private:
  const RandomAccessFile& file_;
  int64_t at_ = 0;
  uint32_t crc_ = 0;
};

absl::Span<char> CharsOf(std::vector<float>& values) {
  return {reinterpret_cast<char*>(values.data()), values.size() * sizeof(float)};
}

absl::StatusOr<GlobalCopy> LoadFrom(const RandomAccessFile& file, int64_t most) {
  Reader reader(file);
  std::string magic(kMagic.size(), '\0');
  MEGATRON_RETURN_IF_ERROR(reader.Read(absl::MakeSpan(magic)));
  if (magic != kMagic) return absl::DataLossError("it is no state of an outer server");
  uint64_t header_bytes = 0;
  MEGATRON_RETURN_IF_ERROR(
      reader.Read({reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes)}));
  if (header_bytes > static_cast<uint64_t>(std::min(file.size(), kMostHeader)))
    return absl::DataLossError("the header is longer than the file");
  std::string header(header_bytes, '\0');
  MEGATRON_RETURN_IF_ERROR(reader.Read(absl::MakeSpan(header)));
  WireReader fields(header);
  const uint64_t run = fields.Get<uint64_t>();
  const int64_t round = fields.Get<int64_t>(), noised_rounds = fields.Get<int64_t>();
  absl::string_view rest = fields.rest();
  absl::StatusOr<IslandAgreement> agreement = TakeAgreement(&rest);
  if (!fields.ok() || !agreement.ok() || !rest.empty() || run == 0 || round < 0 ||
      noised_rounds < 0)
    return absl::DataLossError("the header is damaged");
  int64_t bytes = 0;
  for (const NamedShape& tensor : agreement->tensors) bytes += 4 * tensor.shape.numel();
  if (bytes > file.size()) return absl::DataLossError("the file is cut off");
  MEGATRON_ASSIGN_OR_RETURN(GlobalCopy copy, GlobalCopy::Create(*agreement, most));
  copy.run = run;
  copy.round = round;
  copy.noised_rounds = noised_rounds;
  MEGATRON_RETURN_IF_ERROR(reader.Read(CharsOf(copy.global())));
  MEGATRON_RETURN_IF_ERROR(reader.Read(CharsOf(copy.momentum())));
  const uint32_t crc = reader.crc();
  uint32_t saved = 0;
  MEGATRON_RETURN_IF_ERROR(reader.Read({reinterpret_cast<char*>(&saved), sizeof(saved)}));
  if (saved != crc || !reader.at_end()) return absl::DataLossError("the checksum is wrong");
  return copy;
}

}  // namespace

bool AllFinite(absl::Span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

absl::StatusOr<GlobalCopy> GlobalCopy::Create(const IslandAgreement& agreement, int64_t most) {
  GlobalCopy copy;
  copy.agreement_ = agreement;
  copy.order_ = ModelOrder(agreement.tensors);
  int64_t elements = 0;
  for (const NamedShape& tensor : agreement.tensors) {
    elements += tensor.shape.numel();
    if (elements > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has more than ", most, " parameters, the most that are taken"));
    }
  }
  if (elements == 0) return absl::InvalidArgumentError("the model has no parameters");
  copy.global_.resize(elements);
  if (agreement.outer.momentum != 0) copy.momentum_.resize(elements);
  return copy;
}

template <typename T>
absl::Status GlobalCopy::Scatter(const TensorBlock& block, const T* values,
                                 std::vector<T>* all) const {
  CHECK_EQ(all->size(), global_.size());
  return order_.ForEachRun(block, [&](const ModelOrder::Run& run) {
    std::copy(values + run.in_block, values + run.in_block + run.count,
              all->begin() + run.in_model);
  });
}

template absl::Status GlobalCopy::Scatter(const TensorBlock&, const float*,
                                          std::vector<float>*) const;
template absl::Status GlobalCopy::Scatter(const TensorBlock&, const uint32_t*,
                                          std::vector<uint32_t>*) const;

absl::Status GlobalCopy::Gather(const TensorBlock& block, std::string* values) const {
  values->resize(block.place.extent.numel() * sizeof(float));
  return order_.ForEachRun(block, [&](const ModelOrder::Run& run) {
    std::memcpy(&(*values)[run.in_block * sizeof(float)], &global_[run.in_model],
                run.count * sizeof(float));
  });
}

void GlobalCopy::Step(absl::Span<const float> gradient) {
  CHECK_EQ(gradient.size(), global_.size());
  std::vector<float> change(std::min<int64_t>(elements(), kMostBlockElements));
  for (int64_t begin = 0; begin < elements(); begin += kMostBlockElements) {
    const int64_t count = std::min(kMostBlockElements, elements() - begin);
    // An operation reads its inputs through the same type of tensor.
    float* const mean = const_cast<float*>(gradient.data()) + begin;
    TakeOuterStep(Stream::Inline(), agreement_.outer, View(mean, count),
                  momentum_.empty() ? Tensor() : View(&momentum_[begin], count),
                  View(change.data(), count), View(&global_[begin], count));
  }
  ++round;
}

absl::Status GlobalCopy::CheckPath(FileSystem& fs, const std::string& path) {
  const std::string temporary = TemporaryName(path);
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, fs.Create(temporary));
  MEGATRON_RETURN_IF_ERROR(file->Close());
  return fs.Remove(temporary);
}

absl::Status GlobalCopy::Save(FileSystem& fs, const std::string& path) const {
  WireWriter fields;
  fields.Put(run);
  fields.Put(round);
  fields.Put(noised_rounds);
  std::string header = fields.Take();
  PutAgreement(agreement_, &header);
  WireWriter front;
  front.PutBytes(kMagic);
  front.Put(static_cast<uint64_t>(header.size()));
  front.PutBytes(header);
  const std::string begin = front.Take(), temporary = TemporaryName(path);
  absl::Status status = WriteParts(fs, temporary, {begin, BytesOf(global_), BytesOf(momentum_)});
  if (status.ok()) status = fs.Rename(temporary, path);
  if (status.ok()) return fs.SyncDir(ParentPath(path));
  fs.Remove(temporary).IgnoreError();  // the first error is the one to report
  return status;
}

absl::StatusOr<GlobalCopy> GlobalCopy::Load(FileSystem& fs, const std::string& path, int64_t most) {
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, fs.Open(path));
  absl::StatusOr<GlobalCopy> copy = LoadFrom(*file, most);
  MEGATRON_RETURN_IF_ERROR(copy.status(), _.SetPrepend() << path << ": ");
  return copy;
}

}  // namespace megatron
