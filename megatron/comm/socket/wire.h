// Numbers and strings as bytes: little-endian, without padding. For messages between processes.
//
// A reader never reads past its input: what is not there reads as zero or empty, and ok() is false
// from then on, so that a caller may read everything first and look once.
#ifndef MEGATRON_COMM_SOCKET_WIRE_H_
#define MEGATRON_COMM_SOCKET_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/string_view.h"

namespace megatron {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the bytes of numbers are sent as they are");

class WireWriter {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_integral_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutBytes(absl::string_view bytes) { bytes_.append(bytes.data(), bytes.size()); }
  // Puts the length, then the bytes.
  void PutString(absl::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    PutBytes(text);
  }

  size_t size() const { return bytes_.size(); }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class WireReader {
 public:
  explicit WireReader(absl::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Get() {
    static_assert(std::is_integral_v<T>);
    T value = 0;
    const absl::string_view bytes = GetBytes(sizeof(T));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  absl::string_view GetBytes(size_t count) {
    if (count > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const absl::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }
  absl::string_view GetString() { return GetBytes(Get<uint32_t>()); }
  absl::string_view rest() const { return rest_; }

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }

 private:
  absl::string_view rest_;
  bool ok_ = true;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_SOCKET_WIRE_H_
