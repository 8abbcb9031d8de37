// What a program is given for a run: looked up by name, checked, and turned into the parameters of its kernels.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "ops/executable.h"
#include "runtime/driver/tensor_map.h"

namespace tw {

/// The name that the buffer of an output is given by: that of the input which it overwrites, or its own.
const std::string& name_of_memory(const Tree& tree, const BufferRef& output);

/// Bytes that the buffer's elements span, from the first to the last, gaps included.
int64_t bytes_spanned(const BufferNode& buffer, const Bindings& sizes);

/// What tensor maps have for the type: boxes that add themselves know it. Copies move bits: where there is no element
/// of the type, one of its size.
TensorElement tensor_element(Type type);

/// The arguments of one run. The constructor checks all of them and allocates the workspaces.
class BoundArguments {
public:
    /// Throws Error as Executable::bind says.
    BoundArguments(const Program& program, const Arguments& given, Device& device);

    LaunchShape shape_of(const codegen::KernelText& kernel) const;
    /// In the order of the kernel's parameters: buffers, tensor maps, sizes, scalars.
    std::vector<Argument> parameters_of(const codegen::KernelText& kernel) const;

private:
    void bind_given_buffer(const BufferRef& node, const std::string& name, const Arguments& given);
    void check_tickets(const codegen::KernelText& kernel) const;
    void bind_workspace(const BufferRef& node, const Buffer& given, Device& device);
    void check_alignment(const codegen::KernelText& kernel) const;
    void check_overlap(const codegen::KernelText& kernel) const;
    bool lie_between_each_other(const BufferNode& one, const BufferNode& other) const;
    bool is_overwritten_by_boxes(const codegen::KernelText& kernel, const BufferRef& input) const;
    bool may_overlap(const BufferRef& one, const BufferRef& other) const;
    Argument map_argument(const codegen::TensorMapUse& use) const;
    static Argument map_of_nothing(const Buffer& tensor, TensorLayout layout);
    Argument size_argument(const Expr& size) const;
    Argument scalar_argument(const Expr& scalar) const;

    const Tree& tree_;
    Bindings numbers_;  ///< sizes and scalars
    std::map<const BufferNode*, Buffer> buffers_;
};

}  // namespace tw
