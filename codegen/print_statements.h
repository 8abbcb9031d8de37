// Statements of the thread IR as CUDA text.
#pragma once
#include <string>

#include "codegen/print_expr_cuda.h"
#include "codegen/writer.h"

namespace tw::codegen {

/// What printing needs: names and bounds grow and shrink with the scopes.
struct PrintContext {
    Names& names;
    KnownBounds& bounds;
    ExprPrinter& exprs;
    Writer& out;
};

/// The statements of a kernel's body.
void print_body(const ThreadStmt& body, const PrintContext& context);

/// "float a[16][64]", of a buffer that `names` knows.
std::string declaration(const BufferNode& buffer, const Names& names, ExprPrinter& exprs);

/// One line that cannot end its comment: no control characters, no backslash, no trigraph.
std::string harmless_comment(const std::string& text);

}  // namespace tw::codegen
