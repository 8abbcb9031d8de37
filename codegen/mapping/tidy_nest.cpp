#include "codegen/mapping/tidy_nest.h"

#include <algorithm>

#include "codegen/mapping/bindings.h"
#include "codegen/mapping/remove_unit_loops.h"
#include "codegen/mapping/shorten_loops.h"

namespace tw::codegen {
namespace {

bool keeps_whole_tiles(const Nest& nest) {
    std::vector<LeafPath> paths = leaf_paths(nest.body);
    return has_atoms(nest) || std::any_of(paths.begin(), paths.end(), [](const LeafPath& path) {
               return path.leaf->via.copy == Copy::Tma && path.leaf->stores[0].buffer->memory == Memory::Global;
           });
}

}  // namespace

bool has_atoms(const Nest& nest) {
    std::vector<LeafPath> paths = leaf_paths(nest.body);
    return std::any_of(paths.begin(), paths.end(), [](const LeafPath& path) { return path.leaf->atom; });
}

Nest tidied(const Nest& nest) {
    Nest single = remove_unit_loops(nest);
    return keeps_whole_tiles(nest) ? single : remove_unit_loops(shorten_loops(single));
}

bool computes_nothing(const Nest& tidied) {
    std::vector<LeafPath> paths = leaf_paths(tidied.body);
    return std::none_of(paths.begin(), paths.end(), [](const LeafPath& path) {
        return std::any_of(path.leaf->stores.begin(), path.leaf->stores.end(),
                           [](const StoreTo& store) { return store.buffer->memory == Memory::Global; });
    });
}

}  // namespace tw::codegen
