// What users call things, as identifiers of C++ and CUDA.
#pragma once
#include <string>
#include <string_view>

namespace tw {

/// `wish` with everything but letters, digits and single underscores replaced: an identifier that C++ and CUDA leave to
/// users. Total: any bytes give a name, of at most 49 characters.
std::string sanitize(std::string_view wish);

/// A keyword, a macro or a builtin.
bool is_reserved(const std::string& name);

}  // namespace tw
