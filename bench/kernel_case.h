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
    std::string then = {};  ///< a kernel that runs behind it, and is given its results; empty: none
    int64_t parts = 1;      ///< so many runs of the kernels make one of the case; a scalar `part` tells them which
    std::vector<std::string> rows = {};  ///< buffers whose rows the parts share; all others each part has as a whole
    uint64_t seed = 1;
    std::map<std::string, double> scalars = {};     ///< 0.75 where nothing is said
    std::map<std::string, int64_t> sizes = {};      ///< the largest allowed where nothing is said
    std::map<std::string, Range> ranges = {};       ///< the inputs'; [-1, 1) where nothing is said
    std::map<std::string, Range> ascending = {};    ///< inputs of integers, each element at least the one before it
    bool normal = false;                            ///< inputs without a range are normally distributed instead
    std::map<std::string, Outliers> outliers = {};  ///< of inputs of floats
    std::string folder = {};                        ///< where the operands and results are written; empty: nowhere
};
/// Reads a `prepare` command. Throws Error that names what is missing or of another type.
CaseRequest case_request(const nlohmann::json& command);

class KernelCase {
public:
    /// Compiles, fills, runs once into outputs that start as NaN, and writes the folder's files. Sets of buffers are
    /// added until together they are larger than any L2 cache.
    KernelCase(const schedules::CatalogEntry& entry, std::shared_ptr<Device> device, const CaseRequest& request);
    /// Of kernels that run one behind the other; each is given what those before it have made.
    KernelCase(const std::vector<const schedules::CatalogEntry*>& entries, std::shared_ptr<Device> device,
               const CaseRequest& request);

    /// What the driver of the benchmark needs to know: operands with their files, bytes, flops, and the memory that one
    /// run takes, operands and workspaces, in bytes. Results that a kernel hands to the next are not among the outputs.
    const nlohmann::json& facts() const { return facts_; }

    /// Seconds of one run, of so many in a row on rotating buffers, by the device's timer.
    double burst(int64_t runs);

private:
    std::vector<const Tree*> trees() const;
    void check_names(const CaseRequest& request) const;
    void choose_numbers(const CaseRequest& request);
    std::vector<int64_t> shape_of(const BufferNode& buffer) const;
    Arguments first_set(const std::vector<Tensor>& outputs, const CaseRequest& request);
    Arguments another_set(const Arguments& first);
    Arguments arguments_of_part(const Arguments& all, int64_t part) const;
    void add_set(const Arguments& arguments);
    bool is_handed_on(const std::string& name) const;
    void note_input(const BufferNode& input, const HostArray& array, const std::string& folder);
    void note_outputs(const Arguments& arguments, const std::string& folder);
    void note_costs(const std::vector<const schedules::CatalogEntry*>& entries, const Arguments& first);
    Graph recorded(int64_t runs) const;

    std::shared_ptr<Device> device_;
    int64_t parts_;
    std::vector<std::string> rows_;
    std::vector<Executable> kernels_;  ///< in the order in which they run
    Bindings numbers_;
    std::vector<std::vector<Launch>> sets_;  ///< the same launches on buffers of their own
    Graph graph_;                            ///< the last burst
    int64_t graph_runs_ = 0;
    nlohmann::json facts_;
};

}  // namespace tw::bench
