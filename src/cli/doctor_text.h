// Prints the results of `neap doctor` for people.
//
// Threads   one.
#pragma once

#include "base/json.h"

namespace neap::cli {

/// `found`: the JSON that --json prints.
void print_doctor(const Json& found);

}  // namespace neap::cli
