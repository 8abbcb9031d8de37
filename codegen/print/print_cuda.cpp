// A kernel as CUDA source: header comment, vocabulary, shared memory, and one function.
#include <algorithm>

#include <fmt/format.h>

#include "codegen/access/shared_struct.h"
#include "codegen/print/print_cuda.h"
#include "codegen/print/print_statements.h"
#include "codegen/thread_ir/thread_walk.h"
#include "device/vocabulary.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr size_t kLongestLine = 118;

bool mentions(const ThreadStmt& root, const Expr& variable) {
    bool found = false;
    visit(root, [&](const ThreadStmt& stmt) {
        for (const Expr& expr : expressions(stmt)) found = found || contains(expr, variable);
    });
    return found;
}

class KernelPrinter {
public:
    explicit KernelPrinter(const ThreadKernel& kernel)
        : kernel_(kernel), bounds_(kernel), exprs_(names_, bounds_, vocabulary_) {}

    KernelText run() {
        KernelText result;
        result.name = names_.reserve(sanitize(kernel_.name).substr(0, 40) + "_kernel");
        names_.reserve("shared");
        names_.reserve("Shared");
        names_.reserve(tiles_name);
        std::string function = print_function(result.name);  // first: it says which primitives are needed
        Writer head;
        print_header(head);
        if (!vocabulary_.empty()) {
            head.verbatim(device::vocabulary_text(vocabulary_));
            head.line("");
        }
        for (const auto& [name, value] : constants_) head.line(fmt::format("constexpr int {} = {};", name, value));
        if (!constants_.empty()) head.line("");
        print_shared(head);

        result.cuda = head.text() + function;
        result.line_steps = head.steps();
        result.line_steps.insert(result.line_steps.end(), steps_.begin(), steps_.end());
        result.line_stages = head.stages();
        result.line_stages.insert(result.line_stages.end(), stages_.begin(), stages_.end());
        result.grid = kernel_.grid;
        result.tickets = kernel_.tickets;
        result.cluster = kernel_.cluster;
        result.threads = kernel_.threads + kernel_.producer_threads;
        result.shared_bytes = bytes_of_shared(kernel_.shared, kernel_.unions);
        result.starts_early = kernel_.starts_early;
        result.overlaps_from = kernel_.overlaps_from;
        result.arguments = kernel_.arguments;
        result.written = kernel_.written;
        result.alignments = alignments();
        result.maps = kernel_.maps;
        result.sizes = kernel_.sizes;
        result.scalars = kernel_.scalars;
        result.needs = needs();
        result.approximate = std::any_of(vocabulary_.begin(), vocabulary_.end(), device::is_approximate);
        return result;
    }

private:
    std::vector<bool Target::*> needs() const {
        std::vector<bool Target::*> all;
        auto add = [&](bool Target::*feature) {
            if (feature && std::find(all.begin(), all.end(), feature) == all.end()) all.push_back(feature);
        };
        if (kernel_.cluster > 1) add(&Target::has_clusters);
        visit(kernel_.body, [&](const ThreadStmt& stmt) {
            if (const Instruction* instruction = stmt.as<Instruction>()) add(needed_by(*instruction));
        });
        return all;
    }

    std::string print_function(const std::string& name) {
        Writer out;
        std::vector<std::string> list = parameters();
        // One block a multiprocessor is all that is promised, if not asked for more: otherwise ptxas spills small
        // kernels to fit more of them.
        std::string cluster = kernel_.cluster > 1 ? fmt::format("__cluster_dims__({}, 1, 1) ", kernel_.cluster) : "";
        std::string head = fmt::format("extern \"C\" __global__ void {}__launch_bounds__({}, {})", cluster,
                                       kernel_.threads + kernel_.producer_threads, kernel_.occupancy);
        std::string signature = fmt::format("{}({})", name, fmt::join(list, ", "));
        if (head.size() + signature.size() <= kLongestLine) {
            out.open(head + " " + signature);
        } else {
            out.line(head);
            if (signature.size() > kLongestLine)
                signature = fmt::format("{}({})", name, fmt::join(list, ",\n" + std::string(name.size() + 1, ' ')));
            out.open(signature);
        }
        print_builtins(out);
        print_body(kernel_.body,
                   {names_, bounds_, exprs_, out, kernel_.threads + kernel_.producer_threads, &constants_});
        out.close();
        steps_ = out.steps();
        stages_ = out.stages();
        return out.text();
    }

    /// Wide accesses are of addresses that are multiples of their bytes, from multiples of as many on; calls (cp.async)
    /// take elements side by side in the same way, 16 bytes at most.
    std::vector<int> alignments() const {
        std::vector<int> result;
        for (const Buffer& buffer : kernel_.arguments) result.push_back(tw::bytes_of(buffer->type));
        visit(kernel_.body, [&](const ThreadStmt& stmt) {
            for (const MemoryAccess& access : memory_accesses(stmt)) {
                auto at = std::find(kernel_.arguments.begin(), kernel_.arguments.end(), access.place.buffer);
                if (at == kernel_.arguments.end()) continue;
                int& bytes = result[at - kernel_.arguments.begin()];
                bytes = std::max(bytes, std::min(access.width * tw::bytes_of(access.place.buffer->type), 16));
            }
        });
        return result;
    }

    bool is_alias(const Buffer& buffer) const {
        return std::any_of(kernel_.aliases.begin(), kernel_.aliases.end(),
                           [&](const auto& pair) { return pair.first == buffer || pair.second == buffer; });
    }

    /// Whether threads may hand elements on to each other through it: __restrict__ would let the compiler take what one
    /// thread has not written itself from before a barrier.
    bool is_exchanged(const Buffer& buffer) const {
        int stores = 0, loads = 0;
        visit(kernel_.body, [&](const ThreadStmt& stmt) {
            for (const MemoryAccess& access : memory_accesses(stmt))
                if (access.place.buffer == buffer) ++(access.writes ? stores : loads);
        });
        return stores > 1 || (stores == 1 && loads > 0);
    }

    std::vector<std::string> parameters() {
        std::vector<std::string> list;
        for (size_t a = 0; a < kernel_.arguments.size(); ++a) {
            const BufferNode& buffer = *kernel_.arguments[a];
            bool own = !is_alias(kernel_.arguments[a]) && !is_exchanged(kernel_.arguments[a]);
            std::string pointer = own ? "* __restrict__" : "*";
            list.push_back(fmt::format("{}{}{} {}", kernel_.written[a] ? "" : "const ", exprs_.type(buffer.type),
                                       pointer, names_.declare(&buffer, buffer.name)));
        }
        for (const TensorMapUse& use : kernel_.maps) {
            vocabulary_.insert("TensorMap");
            list.push_back("const __grid_constant__ tw::TensorMap " + names_.declare(use.map.get(), use.map->name));
        }
        for (const auto& numbers : {kernel_.sizes, kernel_.scalars})
            for (const Expr& number : numbers)
                list.push_back(fmt::format("{} {}", exprs_.type(argument_type(number)),
                                           names_.declare(number.id(), number.as<Variable>()->name)));
        return list;
    }

    /// The block's memory and the indices that the kernel uses.
    void print_builtins(Writer& out) {
        for (const Buffer& buffer : kernel_.shared) {
            names_.declare(buffer.get(), buffer->name);
            if (buffer->is_barrier)
                vocabulary_.insert("Barrier");
            else
                exprs_.type(buffer->type);  // notes what it needs: the struct is printed behind that
        }
        if (!kernel_.shared.empty()) {
            vocabulary_.insert("shared_memory");
            out.line("Shared& shared = tw::shared_memory<Shared>();");
        }
        auto declare = [&](const Expr& index, const std::string& builtin) {
            if (!index.defined() || !mentions(kernel_.body, index)) return;
            const std::string& wish = index.as<Variable>()->name;
            std::string type = exprs_.type(index.type());
            out.line(fmt::format("const {} {} = {};", type, names_.declare(index.id(), wish), builtin));
        };
        const char* blocks[] = {"blockIdx.x", "blockIdx.y", "blockIdx.z"};
        for (int dimension : {2, 1, 0}) declare(kernel_.block[dimension], blocks[dimension]);
        declare(kernel_.thread, "threadIdx.x");
    }

    void print_header(Writer& out) const {
        for (const std::string& line : kernel_.header)
            for (const std::string& part : comment_lines(line)) out.line("// " + part);
        int threads = kernel_.threads + kernel_.producer_threads;
        std::string resources = threads == 1 ? "// 1 thread" : fmt::format("// {} threads", threads);
        if (int64_t bytes = bytes_of_shared(kernel_.shared, kernel_.unions))
            resources += fmt::format(", {} bytes of shared memory", bytes);
        out.line(resources);
        out.line("");
    }

    /// The text in lines that are not too long.
    static std::vector<std::string> comment_lines(const std::string& text) {
        constexpr size_t longest = kLongestLine - 3;
        std::vector<std::string> lines;
        std::string rest = harmless_comment(text);
        while (rest.size() > longest) {
            size_t blank = rest.rfind(' ', longest);
            size_t cut = blank == rest.npos || rest.find_first_not_of(' ') >= blank ? longest : blank;
            lines.push_back(rest.substr(0, cut));
            size_t next = std::min(rest.find_first_not_of(' ', cut), rest.size());
            rest = "    " + rest.substr(next);
        }
        lines.push_back(rest);
        return lines;
    }

    void print_shared(Writer& out) {
        if (kernel_.shared.empty()) return;
        out.open("struct Shared");
        std::set<int> printed;
        for (const Buffer& buffer : kernel_.shared) {
            const int number = place_in_unions(buffer.get(), kernel_.unions).number;
            if (number < 0)
                print_array(out, buffer);
            else if (printed.insert(number).second)
                print_union(out, kernel_.unions[static_cast<size_t>(number)]);
        }
        out.close("};");
        out.line("");
    }

    void print_array(Writer& out, const Buffer& buffer) {
        out.line(fmt::format("alignas({}) {};", alignment_of(*buffer), declaration(*buffer, names_, exprs_)));
    }

    void print_union(Writer& out, const SharedUnion& shared) {
        out.open("union");
        for (const std::vector<Buffer>& alternative : shared.alternatives) {
            if (alternative.size() > 1) out.open("struct");
            for (const Buffer& buffer : alternative) print_array(out, buffer);
            if (alternative.size() > 1) out.close("};");
        }
        out.close("};");
    }

    const ThreadKernel& kernel_;
    Names names_;
    KnownBounds bounds_;
    std::set<std::string> vocabulary_;
    ExprPrinter exprs_;
    std::map<std::string, int64_t> constants_;
    std::vector<int> steps_;  // of the function's lines
    std::vector<std::string> stages_;
};

}  // namespace

KernelText print_cuda(const ThreadKernel& kernel) { return KernelPrinter(kernel).run(); }

}  // namespace tw::codegen
