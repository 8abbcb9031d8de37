// Statements of the thread IR as CUDA text.
#pragma once
#include <map>
#include <string>

#include "codegen/print/print_expr_cuda.h"
#include "codegen/print/writer.h"

namespace tw::codegen {

/// What printing needs: names and bounds grow and shrink with the scopes.
struct PrintContext {
    Names& names;
    KnownBounds& bounds;
    ExprPrinter& exprs;
    Writer& out;
    int threads = 0;                                      ///< of a block; 0: not known
    std::map<std::string, int64_t>* constants = nullptr;  ///< that the text uses by name, to be printed above it
};

/// What the number of tiles of the whole grid is called.
inline constexpr const char* tiles_name = "TILES";

/// The statements of a kernel's body.
void print_body(const ThreadStmt& body, const PrintContext& context);

/// "float a[16][64]", of a buffer that `names` knows.
std::string declaration(const BufferNode& buffer, const Names& names, ExprPrinter& exprs);

}  // namespace tw::codegen
