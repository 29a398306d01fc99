// Writes the sentences and tables of a document as Markdown, for a pull request.
#ifndef MEGATRON_TOOLS_REPORT_MARKDOWN_H_
#define MEGATRON_TOOLS_REPORT_MARKDOWN_H_

#include <string>

#include "tools/report/document.h"

namespace megatron::report {

std::string MarkdownOf(const Document& document);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_MARKDOWN_H_
