// The report as one HTML file without network access or other files, for current browsers. A policy
// in the page forbids it to load anything.
//
// Size   a few hundred kB; under 10 MB however many events the trace has (docs/report.md).
#pragma once

#include <string>

#include "report/report.h"

namespace neap::report {

[[nodiscard]] Result<std::string> report_html(const Report& report);

}  // namespace neap::report
