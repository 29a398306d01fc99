// Text of any origin as part of HTML and SVG.
#ifndef MEGATRON_TOOLS_PICTURES_MARKUP_TEXT_H_
#define MEGATRON_TOOLS_PICTURES_MARKUP_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

// Returns `text` for a place between tags or in a quoted attribute. Characters that mean something
// there are escaped. Bytes that are not UTF-8, and control characters other than line feeds, become
// U+FFFD.
std::string MarkupText(absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PICTURES_MARKUP_TEXT_H_
