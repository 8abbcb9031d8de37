// Kernels of attention that are asked for by name.
#pragma once
#include <optional>
#include <string>

#include "schedules/catalog.h"

namespace tw::schedules {

/// Of attention of any kind: dense, by ranges, of packed sequences, in pages, of 8 bits, and gradients. Nothing if it
/// is no such name.
std::optional<CatalogEntry> attention_kind_entry(const std::string& name);

}  // namespace tw::schedules
