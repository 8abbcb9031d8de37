#include "runtime/driver/cuda_graph.h"

#include <set>

#include "runtime/driver/cuda_structures.h"
#include "runtime/driver/memory_work.h"

namespace tw {

cuda::KernelNodeParams node_params(const Launch& launch) {
    auto params = of_shape<cuda::KernelNodeParams>(launch.shape());
    params.function = static_cast<const CudaKernel&>(*launch.kernel().state()).function;
    params.arguments = launch.arguments().addresses();
    return params;
}

namespace {

DriverAnswer add_memory_node(const DriverTable& call, CudaGraph& graph, cuda::Context context, const Launch& launch,
                             const std::vector<cuda::GraphNode>& before) {
    const MemoryWork work = memory_work_of(launch);
    const auto bytes = static_cast<size_t>(work.bytes), element = static_cast<size_t>(work.element_bytes);
    cuda::GraphNode* node = &graph.nodes.back();
    if (work.from) {
        const auto end = [&](uint64_t pointer) {
            cuda::MemcpyEnd end{};
            end.kind = cuda::MemoryOfDevice;
            end.device = pointer;
            end.pitch = bytes;
            end.height = 1;
            return end;
        };
        const cuda::MemcpyParams params{end(*work.from), end(work.to), bytes, 1, 1};
        return {call.graph_add_memcpy_node(node, graph.graph, before.data(), before.size(), &params, context),
                "cuGraphAddMemcpyNode", launch.kernel().entry()};
    }
    const cuda::MemsetParams params{work.to, bytes, work.pattern, unsigned(element), bytes / element, 1};
    return {call.graph_add_memset_node(node, graph.graph, before.data(), before.size(), &params, context),
            "cuGraphAddMemsetNode", launch.kernel().entry()};
}

}  // namespace

DriverAnswer add_nodes(const DriverTable& call, CudaGraph& graph, cuda::Context context,
                       const std::function<bool(const Launch&)>& starts_early) {
    std::vector<std::set<cuda::GraphNode>> ends;  // of each launch, the nodes that have ended when it has
    std::set<cuda::GraphNode> kernels;
    for (size_t n = 0; n < graph.launches.size(); ++n) {
        const Launch& launch = graph.launches[n];
        std::set<cuda::GraphNode>& end = ends.emplace_back();
        for (size_t before : graph.after[n]) end.insert(ends[before].begin(), ends[before].end());
        cuda::GraphNode& node = graph.nodes.emplace_back();
        if (launch.empty()) continue;
        const std::vector<cuda::GraphNode> all(end.begin(), end.end());
        if (launch.kernel().state()->is_memory_work) {
            if (const DriverAnswer answer = add_memory_node(call, graph, context, launch, all); answer.result)
                return answer;
            end = {node};
            continue;
        }
        const bool overlaps =
            all.size() == 1 && kernels.contains(all[0]) && starts_early(launch) && call.graph_add_dependencies;
        auto params = node_params(launch);
        if (auto result = call.graph_add_kernel_node(&node, graph.graph, overlaps ? nullptr : all.data(),
                                                     overlaps ? 0 : all.size(), &params))
            return {result, "cuGraphAddKernelNode", launch.kernel().entry()};
        if (overlaps)
            if (auto result = call.graph_add_dependencies(graph.graph, all.data(), &node, &cuda::ProgrammaticEdge, 1))
                return {result, "cuGraphAddDependencies", launch.kernel().entry()};
        end = {node};
        kernels.insert(node);
    }
    return {};
}

}  // namespace tw
