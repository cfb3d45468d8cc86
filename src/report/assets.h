// Files of the report page that are embedded in the library (assets/).
#pragma once

#include <string_view>

namespace neap::report {

extern const std::string_view kReportCss;
extern const std::string_view kReportBody;
extern const std::string_view kReportJs;

}  // namespace neap::report
