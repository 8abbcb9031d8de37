// What names of kernels that take any extents look like, for messages about names that are none.
#pragma once
#include <string>
#include <vector>

namespace tw::schedules {

/// Of the names that begin so.
struct NameForm {
    std::string begin;    ///< "product_"
    std::string form;     ///< what follows, and what has to hold of it
    std::string example;  ///< a name
};
const std::vector<NameForm>& name_forms();

/// "names that begin with product_ are product_MxNxK, then ...; as product_300x200x100_tb"; empty if no kernel's name
/// begins as this one does.
std::string form_of(const std::string& name);

}  // namespace tw::schedules
