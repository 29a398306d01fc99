// Little-endian numbers at addresses of any alignment. On the supported processors these are plain
// loads and stores.
#ifndef MEGATRON_DATA_LITTLE_ENDIAN_H_
#define MEGATRON_DATA_LITTLE_ENDIAN_H_

#include <cstdint>
#include <cstring>
#include <string>

namespace megatron {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "numbers in files are little-endian, and read as they lie");

// Returns element `index` of the array of T at `data`.
template <typename T>
T LoadLittleEndian(const char* data, int64_t index = 0) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void AppendLittleEndian(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace megatron

#endif  // MEGATRON_DATA_LITTLE_ENDIAN_H_
