#include <algorithm>
#include <map>
#include <string>

#include <fmt/format.h>

#include "ops/step/recompute.h"

namespace tw {
namespace {

using Labels = std::map<const Operation*, std::string>;

/// By what an operation is known in a step that is declared anew, in the same order: its name, or its part's, and which
/// one of that name it is.
Labels labels_of(const std::vector<Tensor>& outputs) {
    const StepParts parts(outputs);
    std::map<std::string, int> counts;
    std::map<const OwnSchedule*, std::string> of_parts;
    Labels labels;
    auto label = [&](const std::string& name) { return fmt::format("{} {}", name, counts[name]++); };
    for (const auto& operation : parts.operations()) {
        const StepParts::Result* result = parts.result_of(*operation);
        if (!result) {
            labels[operation.get()] = label(operation->name);
            continue;
        }
        const auto [entry, is_new] = of_parts.try_emplace(result->part.get());
        if (is_new) entry->second = label("part " + result->part->name);
        labels[operation.get()] = entry->second;
        for (const Tensor& own : result->part->results) labels[own.operation().get()] = entry->second;
    }
    return labels;
}

class Finding {
public:
    Finding(const schedules::Declared& declared, const schedules::Declared& present, const StepGraph& graph)
        : declared_(labels_of(declared.outputs)), present_(labels_of(present.outputs)), graph_(graph) {
        for (const auto& [operation, label] : declared_) known_.insert(label);
    }

    StepRegion nodes(const MadeBetween& region) const {
        StepRegion found;
        std::set<std::string> results;
        for (const Tensor& result : region.results)
            if (const auto label = declared_.find(result.operation().get()); label != declared_.end())
                results.insert(text(label->second, result));
        const std::vector<bool> inside = nodes_inside(region);
        for (int n = 0; n < static_cast<int>(inside.size()); ++n) {
            if (inside[static_cast<size_t>(n)]) found.nodes.insert(n);
            for (const Tensor& made : graph_.nodes[static_cast<size_t>(n)].made()) {
                const auto label = present_.find(made.operation().get());
                const bool is_result = label != present_.end() && results.contains(text(label->second, made));
                if (is_result) found.makers.insert(n);
                if (is_result || inside[static_cast<size_t>(n)])
                    (is_result ? found.results : found.inside).push_back(made);
            }
        }
        return found;
    }

private:
    static std::string text(const std::string& label, const Tensor& tensor) {
        const Operation& operation = *tensor.operation();
        return fmt::format("{}.{}", label, operation.own_schedule ? operation.own_result : tensor.output());
    }

    /// Nodes that nothing was before, copies and what parts are made of, are inside with what they copy and with who
    /// reads them.
    std::vector<bool> nodes_inside(const MadeBetween& region) const {
        std::set<std::string> labels;
        for (const Tensor& tensor : region.inside)
            if (const auto label = declared_.find(tensor.operation().get()); label != declared_.end())
                labels.insert(label->second);
        std::vector<bool> inside(graph_.nodes.size()), is_new(graph_.nodes.size());
        for (size_t n = 0; n < inside.size(); ++n) {
            const StepNode& node = graph_.nodes[n];
            const auto label = present_.find(node.operation.get());
            is_new[n] = label == present_.end() || !known_.contains(label->second);
            inside[n] = label != present_.end() && labels.contains(label->second);
            if (!is_new[n] || node.reads.size() != 1) continue;
            const int read = graph_.maker_of(node.reads[0]);
            inside[n] = read >= 0 && inside[static_cast<size_t>(read)] &&
                        node.operation->name.starts_with(node.reads[0].name() + "_");
        }
        for (size_t n = inside.size(); n-- > 0;)
            for (const Tensor& made : graph_.nodes[n].made())
                if (const auto readers = graph_.readers.find(key_of(made));
                    is_new[n] && readers != graph_.readers.end())
                    inside[n] = inside[n] || std::ranges::any_of(readers->second, [&](int reader) {
                                    return inside[static_cast<size_t>(reader)];
                                });
        return inside;
    }

    const Labels declared_, present_;
    const StepGraph& graph_;
    std::set<std::string> known_;
};

}  // namespace

std::vector<StepRegion> regions_of(const std::vector<MadeBetween>& regions, const schedules::Declared& declared,
                                   const schedules::Declared& present, const StepGraph& graph) {
    std::vector<StepRegion> found;
    if (regions.empty()) return found;
    const Finding finding(declared, present, graph);
    for (const MadeBetween& region : regions) found.push_back(finding.nodes(region));
    return found;
}

}  // namespace tw
