// What the words of a saved trace name. Each throws Error, at `where`, if the text names none.
#pragma once
#include <source_location>
#include <string>

#include "dsl/schedule.h"

namespace tw {

Reference::Kind reference_kind_named(const std::string& text, std::source_location where);
Level level_named(const std::string& text, std::source_location where);
Type type_named(const std::string& text, std::source_location where);
MatrixUnit matrix_unit_named(const std::string& text, std::source_location where);
Copy copy_named(const std::string& text, std::source_location where);
Memory memory_named(const std::string& text, std::source_location where);

}  // namespace tw
