// What a recording holds: a header, then a record for each input. In the file each stands behind
// its length (32 bits). Plain data.
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
  std::string layout;  // of everything that is in the file, by the build that wrote it
  MachineSetup setup;
};

struct Record {
  Time now;
  Input input;
  std::string effects;  // as ValueText
};

inline std::string FileLayout() {
  return absl::StrCat(Layout<MachineSetup>::Text(), Layout<Record>::Text());
}

}  // namespace iris::server::recording
