#include "megatron/data/npy.h"

#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/little_endian.h"

namespace megatron {
namespace {

constexpr absl::string_view kMagic = "\x93NUMPY";
constexpr size_t kAlignment = 64;
// numpy reserves room for the first dimension to grow in place.
constexpr size_t kGrowingDigits = 21;
constexpr size_t kMaxDimensions = 64;

absl::Status Corrupt(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("this is no .npy file that can be read: ", what));
}

// The header is the text of a Python dictionary of three entries. This class reads only what such a
// dictionary may contain.
class HeaderReader {
 public:
  explicit HeaderReader(absl::string_view text) : rest_(text) {}

  absl::Status Read(NpyArray* array) {
    MEGATRON_RETURN_IF_ERROR(Expect("{"));
    bool type = false, order = false, shape = false;
    while (!Take("}")) {
      MEGATRON_ASSIGN_OR_RETURN(const absl::string_view key, Quoted());
      MEGATRON_RETURN_IF_ERROR(Expect(":"));
      bool* const seen = key == "descr" ? &type : key == "shape" ? &shape : &order;
      if (*seen || (seen == &order && key != "fortran_order"))
        return Corrupt(absl::StrCat("an entry '", key, "' in its header"));
      *seen = true;
      MEGATRON_RETURN_IF_ERROR(Value(key, array));
      if (Take("}")) break;
      MEGATRON_RETURN_IF_ERROR(Expect(","));
    }
    if (!type || !order || !shape)
      return Corrupt("its header misses descr, fortran_order or shape");
    SkipSpace();
    return rest_.empty() ? absl::OkStatus() : Corrupt("text behind its header");
  }

 private:
  void SkipSpace() { rest_ = absl::StripLeadingAsciiWhitespace(rest_); }

  bool Take(absl::string_view token) {
    SkipSpace();
    return absl::ConsumePrefix(&rest_, token);
  }

  absl::Status Expect(absl::string_view token) {
    if (Take(token)) return absl::OkStatus();
    return Corrupt(absl::StrCat("its header lacks '", token, "'"));
  }

  absl::StatusOr<absl::string_view> Quoted() {
    SkipSpace();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"'))
      return Corrupt("its header lacks a quoted word");
    const size_t end = rest_.find(rest_[0], 1);
    if (end == absl::string_view::npos) return Corrupt("a quotation without end in its header");
    const absl::string_view word = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return word;
  }

  absl::Status Value(absl::string_view key, NpyArray* array) {
    if (key == "shape") return ReadShape(&array->shape);
    if (key == "fortran_order")
      return Take("False") ? absl::OkStatus() : Corrupt("it is not in C order");
    MEGATRON_ASSIGN_OR_RETURN(const absl::string_view type, Quoted());
    array->type = std::string(type);
    return absl::OkStatus();
  }

  // Reads a shape such as "()", "(3,)" or "(3, 2)".
  absl::Status ReadShape(std::vector<int64_t>* shape) {
    MEGATRON_RETURN_IF_ERROR(Expect("("));
    while (!Take(")")) {
      SkipSpace();
      size_t digits = 0;
      while (digits < rest_.size() && absl::ascii_isdigit(rest_[digits])) ++digits;
      int64_t size;
      if (!absl::SimpleAtoi(rest_.substr(0, digits), &size)) return Corrupt("its shape");
      if (shape->size() == kMaxDimensions) return Corrupt("too many dimensions");
      shape->push_back(size);
      rest_.remove_prefix(digits);
      if (Take(")")) break;
      MEGATRON_RETURN_IF_ERROR(Expect(","));
    }
    return absl::OkStatus();
  }

  absl::string_view rest_;
};

// Returns the bytes of one element, or 0 for an unsupported type.
int64_t ItemSize(absl::string_view type) {
  if (type == "|b1" || type == "|u1" || type == "|i1") return 1;
  if (type.size() != 3 || type[0] != '<' || !absl::StrContains("iuf", type[1])) return 0;
  if (type[2] != '2' && type[2] != '4' && type[2] != '8') return 0;
  return type[2] - '0';
}

}  // namespace

absl::StatusOr<NpyArray> ParseNpy(absl::string_view file) {
  if (!absl::ConsumePrefix(&file, kMagic)) return Corrupt("it does not begin with \\x93NUMPY");
  if (file.size() < 2) return Corrupt("it ends inside its header");
  const int major = static_cast<uint8_t>(file[0]);
  if (major < 1 || major > 3 || file[1] != 0) return Corrupt(absl::StrCat("version ", major));
  file.remove_prefix(2);
  const size_t width = major == 1 ? sizeof(uint16_t) : sizeof(uint32_t);
  if (file.size() < width) return Corrupt("it ends inside its header");
  const size_t length = major == 1 ? LoadLittleEndian<uint16_t>(file.data())
                                   : LoadLittleEndian<uint32_t>(file.data());
  file.remove_prefix(width);
  if (length > file.size()) return Corrupt("it ends inside its header");
  NpyArray array;
  MEGATRON_RETURN_IF_ERROR(HeaderReader(file.substr(0, length)).Read(&array));
  array.data = file.substr(length);

  int64_t bytes = ItemSize(array.type);
  if (bytes == 0) return Corrupt(absl::StrCat("its numbers are of type '", array.type, "'"));
  for (const int64_t size : array.shape) {
    if (size != 0 && bytes > std::numeric_limits<int64_t>::max() / size)
      return Corrupt("its shape is beyond 64 bits");
    bytes *= size;
  }
  if (bytes != static_cast<int64_t>(array.data.size())) {
    return Corrupt(absl::StrCat("it holds ", array.data.size(), " bytes of numbers, not the ",
                                bytes, " that its header tells"));
  }
  return array;
}

std::string NpyHeader(absl::string_view type, absl::Span<const int64_t> shape) {
  std::string text = absl::StrCat("{'descr': '", type, "', 'fortran_order': False, 'shape': (",
                                  absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }");
  if (!shape.empty()) text.append(kGrowingDigits - absl::StrCat(shape[0]).size(), ' ');
  std::string header(kMagic);
  header.append("\x01\x00", 2);
  const size_t before_text = header.size() + sizeof(uint16_t);
  text.append(kAlignment - (before_text + text.size() + 1) % kAlignment, ' ');
  text.push_back('\n');
  AppendLittleEndian(static_cast<uint16_t>(text.size()), &header);
  return header + text;
}

}  // namespace megatron
