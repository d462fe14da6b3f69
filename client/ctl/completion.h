// The text of deploy/completions/iris-ctl.bash, so that the installed program carries it.
#pragma once

namespace iris::ctl {

extern const char kBashCompletion[];

}  // namespace iris::ctl
