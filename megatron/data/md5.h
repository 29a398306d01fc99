// MD5 (RFC 1321). Megatron names the files of an index by it; it protects nothing.
#ifndef MEGATRON_DATA_MD5_H_
#define MEGATRON_DATA_MD5_H_

#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

// Returns the digest as 32 lower-case hexadecimal digits.
std::string Md5Hex(absl::string_view data);

}  // namespace megatron

#endif  // MEGATRON_DATA_MD5_H_
