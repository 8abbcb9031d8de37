// One kernel of the catalog with its data on a device, ready to be run in bursts.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/random_data.h"
#include "dsl/interpret.h"
#include "ops/executable.h"
#include "schedules/catalog.h"

namespace tw::bench {

struct CaseRequest {
    std::string kernel;
    uint64_t seed = 1;
    std::map<std::string, double> scalars = {};   ///< 0.75 where nothing is said
    std::map<std::string, int64_t> sizes = {};    ///< the largest allowed where nothing is said
    std::map<std::string, Range> ranges = {};     ///< the inputs'; [-1, 1) where nothing is said
    std::map<std::string, Range> ascending = {};  ///< inputs of integers, each element at least the one before it
    bool normal = false;                          ///< inputs without a range are normally distributed instead
    std::string folder = {};                      ///< where the operands and results are written; empty: nowhere
};
/// Reads a `prepare` command. Throws Error that names what is missing or of another type.
CaseRequest case_request(const nlohmann::json& command);

class KernelCase {
public:
    /// Compiles, fills, runs once into outputs that start as NaN, and writes the folder's files. Sets of buffers are
    /// added until together they are larger than any L2 cache.
    KernelCase(const schedules::CatalogEntry& entry, std::shared_ptr<Device> device, const CaseRequest& request);

    KernelCase(const Schedule& schedule, double flops, std::shared_ptr<Device> device, const CaseRequest& request);

    /// What the driver of the benchmark needs to know: operands with their files, bytes, flops.
    const nlohmann::json& facts() const { return facts_; }

    /// Seconds of one run, of so many in a row on rotating buffers, by the device's timer.
    double burst(int64_t runs);

private:
    void check_names(const CaseRequest& request) const;
    void choose_numbers(const CaseRequest& request);
    Arguments first_set(const std::vector<Tensor>& outputs, const CaseRequest& request);
    Arguments another_set(const Arguments& first);
    void add_set(const Arguments& arguments);
    void note_output(const BufferRef& output, const Arguments& arguments, const std::string& folder);
    Graph recorded(int64_t runs) const;

    std::shared_ptr<Device> device_;
    Executable executable_;
    Bindings numbers_;
    std::vector<std::vector<Launch>> sets_;  ///< the same launches on buffers of their own
    Graph graph_;                            ///< the last burst
    int64_t graph_runs_ = 0;
    nlohmann::json facts_;
};

}  // namespace tw::bench
