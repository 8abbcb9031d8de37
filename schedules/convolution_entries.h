// Convolutions of the catalogue, known by their names.
#pragma once
#include <optional>
#include <string>

#include "schedules/catalog.h"

namespace tw::schedules {

/// Nothing if the name is none that parse_convolution, parse_fused_convolution or parse_depthwise reads.
std::optional<CatalogEntry> convolution_entry(const std::string& name);
std::optional<CatalogEntry> fused_convolution_entry(const std::string& name);
std::optional<CatalogEntry> depthwise_entry(const std::string& name);

}  // namespace tw::schedules
