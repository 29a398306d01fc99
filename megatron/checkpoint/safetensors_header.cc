#include "megatron/checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/strict_json.h"

namespace megatron {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr size_t kMaxDims = 64;  // NumPy's limit and PyTorch's
constexpr char kMetadataKey[] = "__metadata__";

struct TypeInfo {
  absl::string_view name;
  int bits;
};

// The types ascend in the order in which the format's library stores them from the last to the
// first.
constexpr TypeInfo kTypes[] = {
    {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
    {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
    {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};

const TypeInfo* FindType(absl::string_view name) {
  for (const TypeInfo& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

constexpr std::pair<DType, absl::string_view> kOurTypes[] = {
    {DType::kFloat32, "F32"}, {DType::kBFloat16, "BF16"}, {DType::kFloat16, "F16"},
    {DType::kInt32, "I32"},   {DType::kInt64, "I64"},     {DType::kUInt8, "U8"},
    {DType::kUInt16, "U16"},
};

class HeaderHandler : public StrictJsonHandler {
 public:
  explicit HeaderHandler(SafetensorsHeader* header) : header_(*header) {}

  bool start_object(size_t) override {
    if (place_ == kOutside) {
      place_ = kTop;
    } else if (place_ == kTop && key_ == kMetadataKey) {
      if (std::exchange(has_metadata_, true)) return Fail("there are two '__metadata__'");
      place_ = kMetadata;
    } else if (place_ == kTop) {
      header_.tensors.emplace_back();
      tensor().name = std::move(key_);
      fields_ = 0;
      place_ = kTensor;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == kTensor && fields_ != (kDType | kShape | kOffsets)) {
      return Fail(absl::StrCat("tensor ", Quoted(tensor().name),
                               " lacks one of dtype, shape and data_offsets"));
    }
    place_ = place_ == kTop ? kOutside : kTop;
    return true;
  }

  bool key(string_t& name) override {
    if (place_ != kTensor) {
      key_ = std::move(name);
      return true;
    }
    field_ = name == "dtype"          ? kDType
             : name == "shape"        ? kShape
             : name == "data_offsets" ? kOffsets
                                      : 0;
    if (field_ == 0) {
      return Fail(
          absl::StrCat("tensor ", Quoted(tensor().name), " has an unknown field ", Quoted(name)));
    }
    if ((fields_ & field_) != 0) {
      return Fail(absl::StrCat("tensor ", Quoted(tensor().name), " has two ", name));
    }
    fields_ |= field_;
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == kMetadata) {
      if (header_.metadata.emplace(key_, value).second) return true;
      return Fail(absl::StrCat("the metadata has two ", Quoted(key_)));
    }
    if (place_ != kTensor || field_ != kDType) return Unexpected("a string");
    const TypeInfo* const type = FindType(value);
    if (type == nullptr) {
      return Fail(
          absl::StrCat("tensor ", Quoted(tensor().name), " has the unknown dtype ", Quoted(value)));
    }
    tensor().dtype = type->name;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != kTensor || field_ == kDType) return Unexpected("an array");
    place_ = kNumbers;
    offsets_.clear();
    return true;
  }

  bool end_array() override {
    place_ = kTensor;
    if (field_ != kOffsets) return true;
    if (offsets_.size() != 2) {
      return Fail(absl::StrCat(Place(), " has ", offsets_.size(), " numbers instead of 2"));
    }
    tensor().begin = offsets_[0];
    tensor().end = offsets_[1];
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != kNumbers) return Unexpected("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(absl::StrCat(Place(), " has the number ", value, ", which is too large"));
    }
    std::vector<int64_t>& numbers = field_ == kShape ? tensor().shape : offsets_;
    if (numbers.size() == kMaxDims) return Fail(absl::StrCat(Place(), " is too long"));
    numbers.push_back(static_cast<int64_t>(value));
    return true;
  }

 protected:
  std::string Place() const override {
    switch (place_) {
      case kOutside:
        return "the header";
      case kTop:
        return absl::StrCat("the value of ", Quoted(key_));
      case kMetadata:
        return absl::StrCat("the metadata's ", Quoted(key_));
      default:
        return absl::StrCat("the ",
                            field_ == kDType   ? "dtype"
                            : field_ == kShape ? "shape"
                                               : "data_offsets",
                            " of ", Quoted(header_.tensors.back().name));
    }
  }

 private:
  enum Position { kOutside, kTop, kMetadata, kTensor, kNumbers };
  enum Field { kDType = 1, kShape = 2, kOffsets = 4 };

  SafetensorsTensor& tensor() { return header_.tensors.back(); }

  SafetensorsHeader& header_;
  Position place_ = kOutside;
  bool has_metadata_ = false;
  std::string key_;  // the last one of the header or the metadata
  int field_ = 0;    // the last key of a tensor
  int fields_ = 0;   // those that the tensor has
  std::vector<int64_t> offsets_;
};

// Returns -1 where the product overflows or isn't whole bytes.
int64_t TensorBytes(const SafetensorsTensor& tensor) {
  int64_t bits = FindType(tensor.dtype)->bits;
  for (int64_t dim : tensor.shape) {
    if (__builtin_mul_overflow(bits, dim, &bits)) return -1;
  }
  return bits % 8 == 0 ? bits / 8 : -1;
}

absl::Status CheckNames(const std::vector<SafetensorsTensor>& tensors) {
  std::vector<absl::string_view> names;
  names.reserve(tensors.size());
  for (const SafetensorsTensor& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("there are two tensors ", Quoted(*twice)));
}

// Orders the tensors by their bytes, and checks that they are as long as shape and type say and
// fill `data_bytes` without gap or overlap.
absl::Status CheckOffsets(int64_t data_bytes, std::vector<SafetensorsTensor>* tensors) {
  std::sort(tensors->begin(), tensors->end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t expected = 0;
  for (const SafetensorsTensor& tensor : *tensors) {
    const int64_t bytes = TensorBytes(tensor);
    if (bytes < 0 || tensor.end < tensor.begin || tensor.bytes() != bytes) {
      return absl::DataLossError(absl::StrCat("tensor ", Quoted(tensor.name), ", ", tensor.dtype,
                                              " [", absl::StrJoin(tensor.shape, ", "),
                                              "], does not have the size of its bytes [",
                                              tensor.begin, ", ", tensor.end, ")"));
    }
    if (tensor.begin != expected) {
      return absl::DataLossError(absl::StrCat("tensor ", Quoted(tensor.name), " begins at byte ",
                                              tensor.begin, " where the one before ends at ",
                                              expected));
    }
    expected = tensor.end;
  }
  if (expected == data_bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the tensors have ", expected, " bytes and the file has ",
                                          data_bytes, " for them"));
}

// The length that the file's first bytes tell, checked.
absl::StatusOr<int64_t> HeaderLength(absl::string_view file) {
  if (file.size() < kLengthBytes) {
    return absl::DataLossError("the file is shorter than the length of its header");
  }
  uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) {
    length = length << 8 | static_cast<unsigned char>(file[static_cast<size_t>(i)]);
  }
  if (length > kMaxSafetensorsHeaderBytes) {
    return absl::DataLossError(absl::StrCat("the header has ", length, " bytes; at most ",
                                            kMaxSafetensorsHeaderBytes, " are allowed"));
  }
  if (length > file.size() - kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("the header has ", length, " bytes and the file ", file.size()));
  }
  return static_cast<int64_t>(length);
}

int TypeRank(const SafetensorsTensor& tensor) {
  return static_cast<int>(FindType(tensor.dtype) - kTypes);
}

// Bytes that aren't UTF-8 become U+FFFD.
std::string JsonString(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::Status CheckUtf8(const std::string& text) {
  if (nlohmann::json::parse(JsonString(text)) == nlohmann::json(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Quoted(text), " is not UTF-8"));
}

std::string HeaderText(const SafetensorsHeader& header) {
  std::string text = "{";
  absl::string_view comma = "";
  if (!header.metadata.empty()) {
    absl::StrAppend(&text, "\"", kMetadataKey, "\":{",
                    absl::StrJoin(header.metadata, ",",
                                  [](std::string* out, const auto& entry) {
                                    absl::StrAppend(out, JsonString(entry.first), ":",
                                                    JsonString(entry.second));
                                  }),
                    "}");
    comma = ",";
  }
  for (const SafetensorsTensor& tensor : header.tensors) {
    absl::StrAppend(&text, comma, JsonString(tensor.name), ":{\"dtype\":\"", tensor.dtype,
                    "\",\"shape\":[", absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[");
    absl::StrAppend(&text, tensor.begin, ",", tensor.end, "]}");
    comma = ",";
  }
  absl::StrAppend(&text, "}");
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  return text;
}

absl::StatusOr<SafetensorsHeader> ParseHeaderText(absl::string_view text, int64_t data_bytes) {
  const size_t last = text.find_last_not_of(' ');
  if (text.empty() || text[0] != '{' || text[last] != '}') {
    return absl::DataLossError("the header does not go from '{' to '}'");
  }
  SafetensorsHeader header;
  HeaderHandler handler(&header);
  MEGATRON_RETURN_IF_ERROR(ParseStrictJson(text, &handler));
  MEGATRON_RETURN_IF_ERROR(CheckNames(header.tensors));
  MEGATRON_RETURN_IF_ERROR(CheckOffsets(data_bytes, &header.tensors));
  header.data_begin = kLengthBytes + static_cast<int64_t>(text.size());
  return header;
}

}  // namespace

absl::string_view SafetensorsName(DType dtype) {
  for (const auto& [ours, name] : kOurTypes) {
    if (ours == dtype) return name;
  }
  return "";
}

bool FromSafetensorsName(absl::string_view name, DType* dtype) {
  for (const auto& [ours, theirs] : kOurTypes) {
    if (theirs == name) {
      *dtype = ours;
      return true;
    }
  }
  return false;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view file) {
  MEGATRON_ASSIGN_OR_RETURN(const int64_t length, HeaderLength(file));
  const int64_t data_bytes = static_cast<int64_t>(file.size()) - kLengthBytes - length;
  return ParseHeaderText(file.substr(kLengthBytes, static_cast<size_t>(length)), data_bytes);
}

absl::StatusOr<std::string> LayOutSafetensors(SafetensorsHeader* header) {
  std::sort(header->tensors.begin(), header->tensors.end(), [](const auto& a, const auto& b) {
    const int rank_a = TypeRank(a), rank_b = TypeRank(b);
    return rank_a != rank_b ? rank_a > rank_b : a.name < b.name;
  });
  for (const auto& [key, value] : header->metadata) {
    MEGATRON_RETURN_IF_ERROR(CheckUtf8(key));
    MEGATRON_RETURN_IF_ERROR(CheckUtf8(value));
  }
  int64_t offset = 0;
  for (SafetensorsTensor& tensor : header->tensors) {
    MEGATRON_RETURN_IF_ERROR(CheckUtf8(tensor.name));
    tensor.begin = offset;
    const int64_t bytes = TensorBytes(tensor);
    if (bytes < 0 || __builtin_add_overflow(offset, bytes, &offset)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(tensor.name), " is too large"));
    }
    tensor.end = offset;
  }
  const std::string text = HeaderText(*header);
  if (text.size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(
        "the names of these tensors don't fit into one file's header");
  }
  const absl::StatusOr<SafetensorsHeader> same = ParseHeaderText(text, offset);
  if (!same.ok()) return absl::InvalidArgumentError(same.status().message());
  header->data_begin = kLengthBytes + static_cast<int64_t>(text.size());
  std::string bytes(kLengthBytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(text.size() >> (8 * i));
  return bytes + text;
}

}  // namespace megatron
