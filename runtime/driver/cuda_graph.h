// Kernels and graphs as the driver has them.
#pragma once
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/compile/library.h"
#include "runtime/driver/driver.h"

namespace tw {

struct CudaKernel final : Kernel::State {
    explicit CudaKernel(std::function<void(cuda::Module)> unload) : unload_(std::move(unload)) {}
    ~CudaKernel() override {
        if (module) unload_(module);
    }
    cuda::Module module = nullptr;
    cuda::Function function = nullptr;
    const std::string* interned_entry = nullptr;
    std::mutex mutex;  // of the next
    int64_t dynamic_shared_allowed = 0;

private:
    std::function<void(cuda::Module)> unload_;
};

struct CudaGraph final : Graph::State {
    explicit CudaGraph(std::function<void(cuda::GraphHandle, cuda::GraphExec)> destroy)
        : destroy_(std::move(destroy)) {}
    ~CudaGraph() override { destroy_(graph, exec); }
    cuda::GraphHandle graph = nullptr;  // stays, since updates name its nodes
    cuda::GraphExec exec = nullptr;
    std::vector<cuda::GraphNode> nodes;  // null for an empty launch

private:
    std::function<void(cuda::GraphHandle, cuda::GraphExec)> destroy_;
};

cuda::KernelNodeParams node_params(const Launch& launch);

/// What the driver said of a call, the call, and of which kernel.
struct DriverAnswer {
    cuda::Result result = cuda::Success;
    const char* what = "";
    std::string subject = {};
};

/// A node for each launch that is not empty, of the context's memory where it has no kernel, with edges as `after`
/// says; what waits for an empty one waits for what that waits for. Stops at the first call that fails.
///
/// A node with one node in front of it, a kernel's, whose kernel `starts_early` gets a programmatic edge: it may start
/// when all blocks of that one allow it, and itself waits by griddepcontrol.wait, before it touches memory, until that
/// one has ended. All other edges are full: a node starts when all in front of it have ended. Either way what a node
/// does to memory comes after the end of each node in front of it; and since all threads of a kernel that starts early
/// wait before they end, the end of a node comes after the ends of those in front of it, too. So along any path of
/// edges the last node's accesses come after the end of the first one, and a path orders two nodes whatever its edges
/// are.
DriverAnswer add_nodes(const DriverTable& call, CudaGraph& graph, cuda::Context context,
                       const std::function<bool(const Launch&)>& starts_early);

}  // namespace tw
