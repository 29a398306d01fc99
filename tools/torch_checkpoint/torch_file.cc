#include "tools/torch_checkpoint/torch_file.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

using Kind = PickleValue::Kind;

constexpr int64_t kMostElements = int64_t{1} << 48;

absl::Status Broken(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("no tensor that is read: ", what));
}

struct Storage {
  DType dtype = DType::kFloat32;
  absl::string_view bytes;
};

absl::StatusOr<Storage> StorageOf(const ZipArchive& archive, const PickleValue& value) {
  const PickleValue* const id = value.is(Kind::kPersistent) ? value.items[0] : nullptr;
  if (id == nullptr || !id->is(Kind::kTuple) || id->items.size() != 5 ||
      !id->items[0]->is(Kind::kText) || id->items[0]->text != "storage" ||
      !id->items[1]->is(Kind::kGlobal) || !id->items[2]->is(Kind::kText)) {
    return Broken("its storage is of another kind");
  }
  Storage storage;
  MEGATRON_ASSIGN_OR_RETURN(storage.dtype, TorchDType(id->items[1]->text));
  const absl::string_view* const bytes = archive.Find(absl::StrCat("data/", id->items[2]->text));
  if (bytes == nullptr) return Broken("its bytes are not in the archive");
  storage.bytes = *bytes;
  return storage;
}

// Writes element by element, whatever the address.
template <typename From, typename To, typename Convert>
void CopyAs(const char* from, int64_t count, To* to, Convert convert) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(static_cast<void*>(&value), from + i * static_cast<int64_t>(sizeof(From)),
                sizeof(From));
    to[i] = convert(value);
  }
}

float Wide(float value) { return value; }
float Wide(BFloat16 value) { return ToFloat(value); }
float Wide(Float16 value) { return ToFloat(value); }

template <typename From>
void CopyFrom(const char* from, int64_t count, const Tensor& out, int64_t to) {
  switch (out.dtype()) {
    case DType::kBFloat16:
      return CopyAs<From>(from, count, out.data<BFloat16>() + to,
                          [](From value) { return ToBFloat16(Wide(value)); });
    case DType::kFloat16:
      return CopyAs<From>(from, count, out.data<Float16>() + to,
                          [](From value) { return ToFloat16(Wide(value)); });
    case DType::kFloat32:
      return CopyAs<From>(from, count, out.data<float>() + to,
                          [](From value) { return Wide(value); });
    default:
      LOG(FATAL) << "weights of a type that is not floating";
  }
}

}  // namespace

absl::StatusOr<TorchFile> TorchFile::Parse(absl::string_view bytes) {
  MEGATRON_ASSIGN_OR_RETURN(ZipArchive archive, ZipArchive::Parse(bytes));
  const absl::string_view* const order = archive.Find("byteorder");
  if (order != nullptr && *order != "little")
    return absl::DataLossError(
        "no file of torch.save that is read: its bytes are not little-endian");
  const absl::string_view* const text = archive.Find("data.pkl");
  if (text == nullptr) return absl::DataLossError("no file of torch.save: it has no data.pkl");
  MEGATRON_ASSIGN_OR_RETURN(Pickle pickle, Pickle::Parse(*text));
  return TorchFile(std::move(archive), std::move(pickle));
}

const PickleValue& TorchFile::object() const {
  const bool is_list = root().is(Kind::kList) && root().items.size() == 1;
  return is_list ? *root().items[0] : root();
}

absl::StatusOr<TorchTensor> TorchFile::TensorOf(const PickleValue& value) const {
  const PickleValue* tensor = &value;
  // A parameter is made of a tensor.
  if (tensor->IsCall("torch._utils._rebuild_parameter") && tensor->arguments->is(Kind::kTuple) &&
      !tensor->arguments->items.empty()) {
    tensor = tensor->arguments->items[0];
  }
  if (!tensor->IsCall("torch._utils._rebuild_tensor_v2") || !tensor->arguments->is(Kind::kTuple) ||
      tensor->arguments->items.size() < 4) {
    return Broken("it is another object");
  }
  const std::vector<const PickleValue*>& arguments = tensor->arguments->items;
  MEGATRON_ASSIGN_OR_RETURN(const Storage storage, StorageOf(archive_, *arguments[0]));
  TorchTensor result;
  result.dtype = storage.dtype;
  MEGATRON_ASSIGN_OR_RETURN(result.shape, TorchSizes(*arguments[2]));
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<int64_t> strides, TorchSizes(*arguments[3]));
  if (strides.size() != result.shape.size()) return Broken("it has more dims than strides");
  int64_t stride = 1;
  for (size_t d = result.shape.size(); d-- > 0;) {
    if (result.shape[d] != 1 && strides[d] != stride) return Broken("it is not contiguous");
    stride *= result.shape[d];
  }
  const int64_t offset = arguments[1]->is(Kind::kInt) ? arguments[1]->integer : -1;
  const auto size = static_cast<uint64_t>(SizeOf(result.dtype));
  if (offset < 0 || offset > kMostElements ||
      (static_cast<uint64_t>(offset) + static_cast<uint64_t>(stride)) * size >
          storage.bytes.size()) {
    return Broken("it is larger than its bytes");
  }
  result.bytes = storage.bytes.substr(static_cast<uint64_t>(offset) * size,
                                      static_cast<uint64_t>(stride) * size);
  return result;
}

absl::StatusOr<DType> TorchDType(absl::string_view name) {
  if (name == "torch.float32" || name == "torch.FloatStorage") return DType::kFloat32;
  if (name == "torch.bfloat16" || name == "torch.BFloat16Storage") return DType::kBFloat16;
  if (name == "torch.float16" || name == "torch.HalfStorage") return DType::kFloat16;
  return Broken(absl::StrCat("it is of ", name));
}

absl::StatusOr<std::vector<int64_t>> TorchSizes(const PickleValue& value) {
  const PickleValue* list = &value;
  if (list->IsCall("torch.Size")) {
    list = list->arguments;
    if (list->is(Kind::kTuple) && list->items.size() == 1) list = list->items[0];
  }
  if (!list->is(Kind::kTuple) && !list->is(Kind::kList)) return Broken("its shape is no list");
  std::vector<int64_t> sizes;
  int64_t product = 1;
  for (const PickleValue* size : list->items) {
    if (!size->is(Kind::kInt) || size->integer < 0) return Broken("a size is no number");
    sizes.push_back(size->integer);
    const int64_t factor = size->integer > 1 ? size->integer : 1;
    if (factor > kMostElements / product) return Broken("it is larger than any");
    product *= factor;
  }
  constexpr size_t kMostDims = 8;
  if (sizes.size() > kMostDims) return Broken("it has too many dims");
  return sizes;
}

void CopyElements(const TorchTensor& tensor, int64_t from, int64_t count, const Tensor& out,
                  int64_t to) {
  CHECK(from >= 0 && count >= 0 && from + count <= tensor.numel());
  CHECK(to >= 0 && to + count <= out.numel());
  const char* const bytes = tensor.bytes.data() + from * SizeOf(tensor.dtype);
  switch (tensor.dtype) {
    case DType::kBFloat16:
      return CopyFrom<BFloat16>(bytes, count, out, to);
    case DType::kFloat16:
      return CopyFrom<Float16>(bytes, count, out, to);
    default:
      return CopyFrom<float>(bytes, count, out, to);
  }
}

}  // namespace megatron
