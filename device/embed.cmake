# cmake -DOUTPUT=embedded.cpp -DVOCABULARY=a|b -DPRELUDE=c|d -P embed.cmake
# Writes the files as string constants, so that an installed library needs no source tree.
function(read_literal result files)
  string(REPLACE "|" ";" files "${files}")
  set(text "")
  foreach(file IN LISTS files)
    file(READ "${file}" content)
    string(APPEND text "${content}\n")
  endforeach()
  # In pieces, cut at empty lines: compilers need only accept literals of 64 KiB.
  string(REPLACE "\n\n" "\n\n)tw\"\nR\"tw(" text "${text}")
  set(${result} "R\"tw(${text})tw\"" PARENT_SCOPE)
endfunction()

read_literal(vocabulary "${VOCABULARY}")
read_literal(prelude "${PRELUDE}")
file(WRITE "${OUTPUT}" "namespace tw::device {
extern const char* const kVocabularyText;
extern const char* const kPreludeText;
const char* const kVocabularyText = ${vocabulary};
const char* const kPreludeText = ${prelude};
}  // namespace tw::device
")
