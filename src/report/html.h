// Writes the report as one HTML file for current browsers, without network access or other files. A
// policy in the page forbids it to load anything.
//
// Size   a few hundred kB; under 10 MB for any number of events.
#pragma once

#include <string>

#include "report/report.h"

namespace neap::report {

[[nodiscard]] Result<std::string> report_html(const Report& report);

}  // namespace neap::report
