// Writes a document as one HTML page that needs nothing else: no script, no network, no other file.
// It follows its reader's choice of light or dark, and its pictures have words and tables for who
// does not see them.
#ifndef MEGATRON_TOOLS_REPORT_HTML_H_
#define MEGATRON_TOOLS_REPORT_HTML_H_

#include <string>

#include "tools/report/document.h"

namespace megatron::report {

std::string HtmlOf(const Document& document);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_HTML_H_
