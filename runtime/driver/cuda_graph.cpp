#include "runtime/driver/cuda_graph.h"

#include <set>

#include "runtime/driver/cuda_structures.h"

namespace tw {

cuda::KernelNodeParams node_params(const Launch& launch) {
    auto params = of_shape<cuda::KernelNodeParams>(launch.shape());
    params.function = static_cast<const CudaKernel&>(*launch.kernel().state()).function;
    params.arguments = launch.arguments().addresses();
    return params;
}

DriverAnswer add_nodes(const DriverTable& call, CudaGraph& graph,
                       const std::function<bool(const Launch&)>& starts_early) {
    std::vector<std::set<cuda::GraphNode>> ends;  // of each launch, the nodes that have ended when it has
    for (size_t n = 0; n < graph.launches.size(); ++n) {
        const Launch& launch = graph.launches[n];
        std::set<cuda::GraphNode>& end = ends.emplace_back();
        for (size_t before : graph.after[n]) end.insert(ends[before].begin(), ends[before].end());
        cuda::GraphNode& node = graph.nodes.emplace_back();
        if (launch.empty()) continue;
        const std::vector<cuda::GraphNode> all(end.begin(), end.end());
        const bool overlaps = all.size() == 1 && starts_early(launch) && call.graph_add_dependencies;
        auto params = node_params(launch);
        if (auto result = call.graph_add_kernel_node(&node, graph.graph, overlaps ? nullptr : all.data(),
                                                     overlaps ? 0 : all.size(), &params))
            return {result, "cuGraphAddKernelNode", launch.kernel().entry()};
        if (overlaps)
            if (auto result = call.graph_add_dependencies(graph.graph, all.data(), &node, &cuda::ProgrammaticEdge, 1))
                return {result, "cuGraphAddDependencies", launch.kernel().entry()};
        end = {node};
    }
    return {};
}

}  // namespace tw
