#include "dsl/copy_definition.h"

#include <algorithm>

#include <fmt/format.h>

#include "dsl/edit.h"
#include "dsl/simplify.h"

namespace tw {

using State = Schedule::State;

namespace {

/// What the reader's index says of a dimension: the name of the axis that it is, or of the only one in it; or nothing.
std::string name_in_index(const Expr& index) {
    std::vector<Expr> axes = variables_of(index);
    std::erase_if(axes, [](const Expr& v) { return v.as<Variable>()->kind != VariableKind::Index; });
    return axes.size() == 1 ? tw::to_string(axes[0]) : "";
}

/// Names for the dimensions of an input's copy: as the first reader's indices, where these differ from each other and
/// from those of the loops around, which may be of the same axes; else "d0", "d1".
std::vector<std::string> names_of_dimensions(const State& state, const StageDefinition& reader, const Operation* source,
                                             int under) {
    std::vector<std::string> names(source->shape.size()), taken;
    if (under >= 0)
        for (int loop : enclosing_loops(state, under)) taken.push_back(state.loops[loop].name);
    for (const ReadSite& site : reads_of(reader)) {
        if (site.read->operation.get() != source) continue;
        for (size_t d = 0; d < names.size(); ++d) names[d] = name_in_index(site.read->indices[d]);
        break;
    }
    for (size_t d = 0; d < names.size(); ++d) {
        if (std::find(taken.begin(), taken.end(), names[d]) != taken.end()) names[d].clear();
        if (names[d].empty()) names[d] = fmt::format("d{}", d);
        taken.push_back(names[d]);
    }
    return names;
}

}  // namespace

StageDefinition copy_definition(const State& state, const std::shared_ptr<const Operation>& source, int output,
                                const std::string& name, const StageDefinition& reader, int under) {
    std::vector<std::string> names;
    if (source->axes.empty()) names = names_of_dimensions(state, reader, source.get(), under);
    for (const Expr& axis : source->axes) names.push_back(tw::to_string(axis));
    auto operation = std::make_shared<Operation>();
    operation->name = unique_stage_name(state, name);
    operation->shape = source->shape;
    operation->where = source->where;
    for (size_t d = 0; d < source->shape.size(); ++d) {
        auto bounds = bounds_of(source->shape[d]);
        Variable axis{.name = names[d], .min = 0, .extent = source->shape[d]};
        if (bounds.max) axis.max = std::max<int64_t>(*bounds.max - 1, 0);
        operation->axes.push_back(make_expr(Type::I64, axis));
    }
    Type type = source->outputs[output].type;
    Expr body = make_expr(type, Read{source, output, operation->axes});
    operation->outputs = {{type, body}};
    return {operation->name, operation, operation->axes, {}, {}, {}, {}, {body}};
}

}  // namespace tw
