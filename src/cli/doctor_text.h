// What `neap doctor` found, for people.
//
// Threads   one.
#pragma once

#include "base/json.h"

namespace neap::cli {

/// `found`: what --json prints.
void print_doctor(const Json& found);

}  // namespace neap::cli
