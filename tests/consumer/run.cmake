# cmake -Dbuild_dir=... -Dconsumer_dir=... -Dgenerator=... -Dcompiler=... -Dlauncher=... -Dflags=... -P run.cmake
# Installs the build into a prefix of its own, then configures, builds and runs the consumer against that, and with it the
# program of docs/your-own-kernel.md.
set(work_dir "${build_dir}/consumer")
file(REMOVE_RECURSE "${work_dir}")

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install "${build_dir}" --prefix "${work_dir}/prefix")
set(page_program "${work_dir}/your_own_kernel.cpp")
run(${CMAKE_COMMAND} "-DPAGE=${consumer_dir}/../../docs/your-own-kernel.md" "-DOUTPUT=${page_program}"
  -P "${consumer_dir}/../../cmake/ExtractProgram.cmake")
run(${CMAKE_COMMAND} -S "${consumer_dir}" -B "${work_dir}/build" -G "${generator}"
  "-DCMAKE_PREFIX_PATH=${work_dir}/prefix" "-DCMAKE_CXX_COMPILER=${compiler}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${launcher}"
  "-DCMAKE_CXX_FLAGS=${flags}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0
  "-DPAGE_PROGRAM=${page_program}")
run(${CMAKE_COMMAND} --build "${work_dir}/build" --parallel)
run("${work_dir}/build/consumer")
set(ENV{TW_DEVICE} emulated)
execute_process(COMMAND "${work_dir}/build/your_own_kernel" WORKING_DIRECTORY "${work_dir}" COMMAND_ERROR_IS_FATAL ANY)
run("${work_dir}/prefix/bin/tw" list)
run("${work_dir}/prefix/bin/tw" --load "${work_dir}/build/libmine.so" run scale_1000 --device emulated)
