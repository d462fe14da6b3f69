// A recording is a header, then a record for each input; each is preceded in the file by its length
// (32 bits). Plain data.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "server/job/inputs.h"
#include "server/recording/codec.h"
#include "server/recording/recorder.h"

namespace iris::server::recording {

inline constexpr char kMagic[] = "iris recording 1";

struct Header {
  std::string magic;
  std::string layout;  // of all types in the file, in the build that wrote it
  MachineSetup setup;
};

struct Record {
  Time now;
  Input input;
  std::string effects;  // text from ValueText
};

inline std::string FileLayout() {
  return absl::StrCat(LayoutText<MachineSetup>(), LayoutText<Record>());
}

}  // namespace iris::server::recording
