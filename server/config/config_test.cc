#include "server/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "tests/cc/require.h"

namespace iris::server {
namespace {

using absl::StatusCode;
using iris::testing::Require;
using ::testing::HasSubstr;

void ExpectRefused(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), text)) << status << "\nwanted: " << text;
}

absl::Status Apply(const std::string& text, Config* config) {
  return ApplyToml(text, "irisd.toml", config);
}

absl::Status Apply(const std::string& text) {
  Config config;
  return Apply(text, &config);
}

TEST(ConfigFileTest, SizesTakeTheOneGrammar) {
  for (const char* text : {"\"512M\"", "\"512MiB\"", "\"512 MiB\"", "536870912"}) {
    Config config;
    ASSERT_TRUE(Apply(std::string("[emu]\nmemory = ") + text, &config).ok()) << text;
    EXPECT_EQ(config.emu_memory_bytes, 512ull << 20) << text;
  }
}

TEST(ConfigFileTest, RefusesWhatIsNoSize) {
  for (const char* text :
       {"", "GiB", "-1", "4.5GiB", "1e3", "+1", "16777216TiB", "18446744073709551616"}) {
    ExpectRefused(Apply(std::string("[emu]\nmemory = \"") + text + "\""),
                  "is not a number of bytes");
  }
}

TEST(ConfigFileTest, MembersOfEtcdAreAList) {
  for (const char* text :
       {"[\"10.0.0.1:2379\", \"[fd00::1]:2379\"]", "\"10.0.0.1:2379,[fd00::1]:2379\""}) {
    Config config;
    ASSERT_TRUE(Apply(std::string("[network]\netcd = ") + text, &config).ok()) << text;
    EXPECT_EQ(config.network.etcd, std::vector<std::string>({"10.0.0.1:2379", "[fd00::1]:2379"}));
  }
  Config config;
  ASSERT_TRUE(Apply("[network]\netcd = []", &config).ok());
  EXPECT_TRUE(config.network.etcd.empty());
  for (const char* text : {"a", "a:", ":1", "a:0", "a:70000", "fd00::1:2379", "http://a:2379"}) {
    ExpectRefused(Apply(std::string("[network]\netcd = [\"") + text + "\"]"),
                  "is not a member of etcd: HOST:PORT");
  }
  ExpectRefused(Apply("[network]\netcd = [1]"), "must be texts in quotes");
  ExpectRefused(Apply("[network]\netcd = 1"), "must be texts in quotes");
  ExpectRefused(Apply("[network]\netcd_ca = \"ca.pem\""), "is not an absolute path");
  std::string many;
  for (int i = 0; i < 17; ++i) many += "a:1,";
  ExpectRefused(Apply("[network]\netcd = \"" + many + "\""), "at most 16");
}

TEST(ConfigFileTest, NamesForOtherProgramsAreOneShortLine) {
  for (const char* key : {"interface", "transports", "devices", "ucx"}) {
    for (const std::string& text :
         {std::string("/tcp\\u0000x"), std::string("/a\\nb"), "/" + std::string(4096, 'a')}) {
      ExpectRefused(Apply(absl::StrCat("[network]\n", key, " = \"", text, "\"")),
                    "is not at most 4096 bytes without control characters");
    }
  }
}

TEST(ConfigFileTest, AnEmptyFileKeepsTheDefaults) {
  Config config;
  ASSERT_TRUE(Apply("", &config).ok());
  EXPECT_EQ(config.backend, "auto");
  EXPECT_EQ(config.emu_devices, 8u);
  EXPECT_EQ(config.emu_memory_bytes, 4ull << 30);
  EXPECT_EQ(config.runtime_dir.socket_mode, 0660u);
}

TEST(ConfigFileTest, SetsEverySection) {
  Config config;
  const absl::Status status = Apply(
      "runtime_dir = \"/run/other\"\n"
      "socket_mode = \"0600\"\n"
      "socket_group = \"7\"\n"
      "backend = \"emu\"\n"
      "[emu]\ndevices = 3\nmemory = \"64MiB\"\n"
      "[log]\nlevel = \"warn\"\nformat = \"json\"\n"
      "[sessions]\nattestation = \"nonce\"\nhandshake_timeout = \"250ms\"\nmax = 10\n"
      "[admin]\nmax_per_tenant = 2\n"
      "[jobs]\nmax = 5\nmax_heap_per_uid = 1048576\ngrow_timeout = \"1m30s\"\n",
      &config);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(config.runtime_dir.path, "/run/other");
  EXPECT_EQ(config.runtime_dir.socket_mode, 0600u);
  EXPECT_EQ(config.runtime_dir.socket_group, 7u);
  EXPECT_EQ(config.backend, "emu");
  EXPECT_EQ(config.emu_devices, 3u);
  EXPECT_EQ(config.emu_memory_bytes, 64u << 20);
  EXPECT_EQ(config.log_level, LogLevel::kWarn);
  EXPECT_EQ(config.log_format, LogFormat::kJson);
  EXPECT_EQ(config.sessions.attestation, Attestation::kNonce);
  EXPECT_EQ(config.sessions.handshake_timeout, absl::Milliseconds(250));
  EXPECT_EQ(config.sessions.limits.max_sessions, 10u);
  EXPECT_EQ(config.sessions.limits.max_admin_connections_per_tenant, 2u);
  EXPECT_EQ(config.jobs.max_jobs, 5u);
  EXPECT_EQ(config.jobs.max_heap_bytes_per_uid, 1u << 20);
  EXPECT_EQ(config.jobs.grow_timeout, absl::Seconds(90));
}

TEST(ConfigFileTest, AnUnknownKeyHasItsLineAndTheNearestName) {
  ExpectRefused(Apply("[emu]\n\ndevises = 4\n"),
                "irisd.toml:3: unknown key emu.devises; did you mean emu.devices?");
}

TEST(ConfigFileTest, AnUnknownSectionHasItsLineAndTheNearestName) {
  ExpectRefused(Apply("# jobs\n[jos]\nmax = 4\n"),
                "irisd.toml:2: unknown section [jos]; did you mean [jobs]?");
}

TEST(ConfigFileTest, AFarAwayNameGetsNoSuggestion) {
  const absl::Status status = Apply("pineapple_upside_down = 1\n");
  ExpectRefused(status, "unknown key pineapple_upside_down");
  EXPECT_FALSE(absl::StrContains(status.message(), "did you mean")) << status;
}

TEST(ConfigFileTest, ATableInPlaceOfAValueIsRefused) {
  ExpectRefused(Apply("[emu.devices]\nx = 1\n"), "emu.devices");
}

TEST(ConfigFileTest, AValueInPlaceOfASectionIsRefused) {
  ExpectRefused(Apply("emu = 4\n"), "irisd.toml:1: emu is a section: write [emu]");
}

TEST(ConfigFileTest, SyntaxErrorsHaveTheirLine) {
  ExpectRefused(Apply("[emu]\ndevices = = 4\n"), "irisd.toml:2: ");
}

TEST(ConfigFileTest, WrongTypesAreRefused) {
  ExpectRefused(Apply("[emu]\ndevices = \"4\"\n"), "irisd.toml:2: emu.devices: must be a whole");
  ExpectRefused(Apply("[emu]\ndevices = 4.5\n"), "must be a whole number");
  ExpectRefused(Apply("[emu]\nmemory = true\n"), "emu.memory: must be a size");
  ExpectRefused(Apply("[jobs]\nmap_timeout = 5\n"), "jobs.map_timeout: must be a duration");
  ExpectRefused(Apply("runtime_dir = 1\n"), "runtime_dir: must be a text");
}

TEST(ConfigFileTest, ValuesOutOfRangeAreRefused) {
  ExpectRefused(Apply("[emu]\ndevices = 0\n"), "a number from 1 to 1024");
  ExpectRefused(Apply("[emu]\ndevices = -1\n"), "a number from 1 to 1024");
  ExpectRefused(Apply("[emu]\ndevices = 1025\n"), "a number from 1 to 1024");
  ExpectRefused(Apply("[emu]\nmemory = \"1KiB\"\n"), "at least 2 MiB");
  ExpectRefused(Apply("[jobs]\nmap_timeout = \"0s\"\n"), "duration from 1ms");
  ExpectRefused(Apply("[jobs]\nmap_timeout = \"inf\"\n"), "duration from 1ms");
  ExpectRefused(Apply("[jobs]\nmap_timeout = \"-1s\"\n"), "duration from 1ms");
}

TEST(ConfigFileTest, UnknownChoicesNameTheKnownOnes) {
  ExpectRefused(Apply("[log]\nlevel = \"loud\"\n"),
                "\"loud\" is not \"debug\" or \"info\" or \"warn\" or \"error\"");
}

TEST(ConfigFileTest, SocketModesMustLetTheOwnerIn) {
  for (const char* mode : {"0", "0066", "1777", "0888", "rw", "", "00000660"}) {
    ExpectRefused(Apply(std::string("socket_mode = \"") + mode + "\"\n"), "socket_mode");
  }
  EXPECT_TRUE(Apply("socket_mode = \"0666\"\n").ok());
}

TEST(ConfigFileTest, GroupsAreNamesOrNumbers) {
  Config config;
  ASSERT_TRUE(Apply("socket_group = \"root\"\n", &config).ok());
  EXPECT_EQ(config.runtime_dir.socket_group, 0u);
  ExpectRefused(Apply("socket_group = \"no such group here\"\n"), "not a group of this system");
}

TEST(ConfigFileTest, ARelativeRuntimeDirIsRefused) {
  ExpectRefused(Apply("runtime_dir = \"run/iris\"\n"), "an absolute path");
}

class TempFile {
 public:
  explicit TempFile(const std::string& text) {
    char path[] = "/tmp/iris-config-XXXXXX";
    close(mkstemp(path));
    path_ = path;
    std::ofstream(path_) << text;
  }
  ~TempFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(CommandLineTest, NoFlagsGiveTheDefaults) {
  const auto line = Require(ParseCommandLine({}));
  EXPECT_FALSE(line.exit);
  EXPECT_EQ(line.config.emu_devices, 8u);
}

TEST(CommandLineTest, FlagsTakeBothForms) {
  const auto line = Require(ParseCommandLine({"--emu-devices", "2", "--emu-memory=1GiB"}));
  EXPECT_EQ(line.config.emu_devices, 2u);
  EXPECT_EQ(line.config.emu_memory_bytes, 1ull << 30);
}

TEST(CommandLineTest, AnUnknownBackendGetsTheChoice) {
  EXPECT_EQ(ParseCommandLine({"--backend=emu"})->config.backend, "emu");
  ExpectRefused(ParseCommandLine({"--backend=abacus"}).status(),
                "--backend: \"abacus\" is not \"auto\" or \"emu\"");
}

TEST(CommandLineTest, AFlagWinsOverTheFile) {
  const TempFile file("[emu]\ndevices = 3\nmemory = \"64MiB\"\n");
  const auto line = Require(ParseCommandLine({"--emu-devices", "5", "--config", file.path()}));
  EXPECT_EQ(line.config.emu_devices, 5u);
  EXPECT_EQ(line.config.emu_memory_bytes, 64u << 20);
}

TEST(CommandLineTest, SuperviseIsAFlagWithoutAValue) {
  EXPECT_FALSE(ParseCommandLine({})->supervise);
  const auto line =
      Require(ParseCommandLine({"--max-jobs", "3", "--supervise", "--no-self-check"}));
  EXPECT_TRUE(line.supervise);
  EXPECT_EQ(line.config.jobs.max_jobs, 3u);
  EXPECT_FALSE(ParseCommandLine({"--supervise=false"}).ok());
}

TEST(CommandLineTest, StateIsACommandWithTheSameFlags) {
  EXPECT_EQ(ParseCommandLine({})->state, "");
  for (const char* command : {"check", "dump", "stat"}) {
    for (const std::vector<std::string>& args :
         {std::vector<std::string>{"state", command, "--runtime-dir", "/x"},
          {"--runtime-dir", "/x", "state", command},
          {"state", "--runtime-dir=/x", command}}) {
      const auto line = Require(ParseCommandLine(args));
      EXPECT_EQ(line.state, command);
      EXPECT_EQ(line.config.runtime_dir.path, "/x");
      EXPECT_FALSE(line.exit);
    }
  }
  const auto help = Require(ParseCommandLine({"state", "--help"}));
  EXPECT_TRUE(help.exit);
  EXPECT_TRUE(absl::StrContains(help.output, "dump"));
  EXPECT_FALSE(absl::StrContains(help.output, "--emu-devices"));
  ExpectRefused(ParseCommandLine({"state"}).status(), "state");
  ExpectRefused(ParseCommandLine({"state", "chekc"}).status(), "check, dump or stat");
  ExpectRefused(ParseCommandLine({"state", "check", "dump"}).status(), "check, dump or stat");
  ExpectRefused(ParseCommandLine({"state", "check", "--runtimedir=/x"}).status(),
                "did you mean --runtime-dir?");
}

TEST(CommandLineTest, CheckStateTakesTheFlagsOfTheService) {
  EXPECT_FALSE(ParseCommandLine({})->check_state);
  const auto line = Require(ParseCommandLine({"--max-jobs", "3", "--check-state"}));
  EXPECT_TRUE(line.check_state);
  EXPECT_FALSE(line.exit);
  EXPECT_FALSE(ParseCommandLine({"--check-state=false"}).ok());
}

TEST(CommandLineTest, ARecordingIsNamedByAnAbsolutePath) {
  const auto line = Require(ParseCommandLine({"--record", "/var/tmp/irisd.recording"}));
  EXPECT_EQ(line.config.record_file, "/var/tmp/irisd.recording");
  ExpectRefused(ParseCommandLine({"--record", "here"}).status(), "--record: \"here\"");
}

TEST(CommandLineTest, HelpNamesEveryFlag) {
  const auto line = Require(ParseCommandLine({"--help"}));
  EXPECT_TRUE(line.exit);
  for (const char* flag :
       {"--config", "--check-config", "--version", "--runtime-dir", "--emu-devices", "--emu-memory",
        "--log-level", "--log-format", "--attestation", "--socket-mode", "--socket-group",
        "--max-sessions", "--map-timeout", "--join-timeout", "--record", "--supervise",
        "--check-state"}) {
    EXPECT_TRUE(absl::StrContains(line.output, flag)) << flag;
  }
}

// The texts say them by hand.
TEST(CommandLineTest, HelpSaysTheDefaults) {
  const std::string help = ParseCommandLine({"--help"})->output;
  const Config defaults;
  for (const auto& [text, value] :
       {std::pair("ended after this time", defaults.worker_idle_timeout),
        std::pair("finish its handshake within this time", defaults.sessions.handshake_timeout),
        std::pair("cannot be sent for so long is ended", defaults.sessions.send_timeout),
        std::pair("waits this long for the other ranks, unless it says",
                  defaults.jobs.join_timeout_default),
        std::pair("map its peers within this time", defaults.jobs.map_timeout),
        std::pair("of a team waits this long, unless it says",
                  defaults.jobs.operation_timeout_default),
        std::pair("map a growth within this time", defaults.jobs.grow_timeout)}) {
    EXPECT_TRUE(absl::StrContains(
        help, absl::StrCat(text, " (",
                           value == absl::Minutes(1) ? "1m" : absl::FormatDuration(value), ")")))
        << text;
  }
}

TEST(CommandLineTest, VersionIsPrinted) {
  const auto line = Require(ParseCommandLine({"--version"}));
  EXPECT_TRUE(line.exit);
  EXPECT_TRUE(absl::StartsWith(line.output, "irisd 0."));
}

TEST(CommandLineTest, CheckConfigReadsTheFile) {
  const TempFile good("[emu]\ndevices = 3\n"), bad("[emu]\ndevices = \"x\"\n");
  const auto line = Require(ParseCommandLine({"--check-config", "--config", good.path()}));
  EXPECT_TRUE(line.exit);
  EXPECT_TRUE(absl::StrContains(line.output, good.path()));
  ExpectRefused(ParseCommandLine({"--check-config", "--config", bad.path()}).status(),
                bad.path() + ":2: emu.devices");
}

TEST(CommandLineTest, AnUnknownFlagGetsTheNearestName) {
  ExpectRefused(ParseCommandLine({"--emu-device", "4"}).status(),
                "unknown flag --emu-device; did you mean --emu-devices?");
  ExpectRefused(ParseCommandLine({"--runtimedir=/x"}).status(), "did you mean --runtime-dir?");
}

TEST(CommandLineTest, StrayArgumentsAndMissingValuesAreRefused) {
  ExpectRefused(ParseCommandLine({"start"}).status(), "takes flags and the command");
  ExpectRefused(ParseCommandLine({"--emu-devices"}).status(), "--emu-devices");
}

TEST(CommandLineTest, ABadValueNamesItsFlag) {
  ExpectRefused(ParseCommandLine({"--emu-memory", "4 bananas"}).status(), "--emu-memory: ");
  ExpectRefused(ParseCommandLine({"--log-format", "xml"}).status(), "--log-format: \"xml\"");
}

TEST(CommandLineTest, EtcdsCertificateKeyAndAuthoritiesNeedEachOther) {
  const std::string ca = "--network-etcd-ca=/ca", certificate = "--network-etcd-certificate=/c",
                    key = "--network-etcd-key=/k";
  EXPECT_TRUE(ParseCommandLine({ca}).ok());
  EXPECT_TRUE(ParseCommandLine({ca, certificate, key}).ok());
  for (const auto& args : std::vector<std::vector<std::string>>{
           {certificate}, {key}, {certificate, key}, {ca, certificate}, {ca, key}}) {
    ExpectRefused(ParseCommandLine(args).status(), "need each other");
  }
}

TEST(CommandLineTest, AMissingFileIsNamed) {
  ExpectRefused(ParseCommandLine({"--config", "/nowhere/irisd.toml"}).status(),
                "/nowhere/irisd.toml");
}

TEST(CommandLineTest, EveryMistakeIsListed) {
  const TempFile file(
      "[log]\nlevle = \"info\"\n[emu]\ndevices = 0\nmemory = 1.5\n[jos]\nmax = 1\n");
  const auto line = ParseCommandLine(
      {"--check-config", "--config", file.path(), "--max-jobs", "x", "--join-timeout", "2h"});
  EXPECT_EQ(line.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      line.status().message(),
      absl::StrCat(file.path(), ":2: unknown key log.levle; did you mean log.level?\n", file.path(),
                   ":4: emu.devices: \"0\" is not a number from 1 to 1024\n", file.path(),
                   ":5: emu.memory: must be a size: \"4GiB\", or a whole number of bytes\n",
                   file.path(), ":6: unknown section [jos]; did you mean [jobs]?\n",
                   "--max-jobs: \"x\" is not a number from 1 to 1048576\n",
                   "jobs.join_timeout is longer than jobs.join_timeout_max"));
  ExpectRefused(ParseCommandLine({"--emu-device", "4", "--runtimedir=/x"}).status(),
                "unknown flag --emu-device; did you mean --emu-devices? (see --help)\n"
                "unknown flag --runtimedir; did you mean --runtime-dir? (see --help)");
}

TEST(CommandLineTest, OnlyAFileOrAPipeThatEndsIsRead) {
  ExpectRefused(ParseCommandLine({"--config", "/dev/zero"}).status(),
                "/dev/zero: it is neither a regular file nor a pipe");
  ExpectRefused(ParseCommandLine({"--config", "/"}).status(), "neither a regular file nor a pipe");
  const absl::Status missing = ParseCommandLine({"--config", "/no\x1bwhere"}).status();
  EXPECT_THAT(missing.message(), HasSubstr("read the configuration file /no\\x1bwhere"));
  EXPECT_THAT(missing.message(), HasSubstr("No such file"));
  const std::string most = "#" + std::string((1 << 20) - 2, 'x') + "\n";
  EXPECT_TRUE(ParseCommandLine({"--config", TempFile(most).path()}).ok());
  ExpectRefused(ParseCommandLine({"--config", TempFile("#" + most).path()}).status(),
                "it has more than 1 MiB");

  const std::string fifo = absl::StrCat(::testing::TempDir(), "/fifo-", getpid());
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ExpectRefused(ParseCommandLine({"--config", fifo}).status(), "nobody has written for 5000 ms");
  unlink(fifo.c_str());

  signal(SIGPIPE, SIG_IGN);
  for (const bool ends : {true, false}) {
    int ends_of[2];
    ASSERT_EQ(pipe(ends_of), 0);
    std::thread writer([&, to = ends_of[1]] {
      const std::string piece = "backend = \"emu\"\n";
      while (write(to, piece.data(), piece.size()) > 0 && !ends) continue;
      close(to);
    });
    const std::string path = absl::StrCat("/dev/fd/", ends_of[0]);
    const auto line = ParseCommandLine({"--config", path});
    close(ends_of[0]);
    writer.join();
    if (ends) {
      ASSERT_TRUE(line.ok()) << line.status();
      EXPECT_EQ(line->config.backend, "emu");
    } else {
      ExpectRefused(line.status(), "it has more than 1 MiB");
    }
  }
}

TEST(CommandLineTest, TheEnvironmentNamesTheRuntimeDirWhereNothingElseDoes) {
  const TempFile file("runtime_dir = \"/run/file\"\n");
  setenv("IRIS_RUNTIME_DIR", "/run/environment", 1);
  EXPECT_EQ(ParseCommandLine({})->config.runtime_dir.path, "/run/environment");
  EXPECT_EQ(ParseCommandLine({"--config", file.path()})->config.runtime_dir.path, "/run/file");
  EXPECT_EQ(ParseCommandLine({"--config", file.path(), "--runtime-dir", "/run/flag"})
                ->config.runtime_dir.path,
            "/run/flag");
  for (const char* bad : {"run/iris", "~/iris", "/run/\x1b[31m", "/run/a\nb"}) {
    setenv("IRIS_RUNTIME_DIR", bad, 1);
    ExpectRefused(
        ParseCommandLine({}).status(),
        absl::StrCat("IRIS_RUNTIME_DIR: \"", EscapeForLog(bad), "\" is not an absolute path"));
    EXPECT_TRUE(ParseCommandLine({"--runtime-dir", "/run/flag"}).ok());
  }
  setenv("IRIS_RUNTIME_DIR", "", 1);
  EXPECT_EQ(ParseCommandLine({})->config.runtime_dir.path, "");
  unsetenv("IRIS_RUNTIME_DIR");
}

TEST(ReloadTest, TakesWhatCanChangeAndNamesWhatCannot) {
  Config running, next;
  ASSERT_TRUE(Apply("runtime_dir = \"/run/other\"\nsocket_mode = \"0600\"\nbackend = \"emu\"\n"
                    "[log]\nlevel = \"warn\"\nformat = \"json\"\n"
                    "[sessions]\nmax = 7\nsend_timeout = \"1s\"\n[admin]\nmax_per_tenant = 2\n"
                    "[jobs]\nmax_heap_per_uid = 1048576\n",
                    &next)
                  .ok());
  const Reload reload = PlanReload(running, next);
  EXPECT_EQ(absl::StrJoin(reload.changed, " "),
            "log.level sessions.max admin.max_per_tenant jobs.max_heap_per_uid");
  EXPECT_EQ(absl::StrJoin(reload.kept, " "),
            "runtime_dir socket_mode backend log.format sessions.send_timeout");
  EXPECT_EQ(reload.config.log_level, LogLevel::kWarn);
  EXPECT_EQ(reload.config.sessions.limits.max_sessions, 7u);
  EXPECT_EQ(reload.config.sessions.limits.max_admin_connections_per_tenant, 2u);
  EXPECT_EQ(reload.config.jobs.max_heap_bytes_per_uid, 1u << 20);
  EXPECT_EQ(reload.config.runtime_dir.path, "");
  EXPECT_EQ(reload.config.backend, "auto");
  EXPECT_EQ(reload.config.log_format, LogFormat::kKeyValue);
  EXPECT_EQ(reload.config.sessions.send_timeout, absl::Seconds(30));
  const Reload again = PlanReload(reload.config, next);
  EXPECT_TRUE(again.changed.empty());
  EXPECT_EQ(again.kept, reload.kept);
}

TEST(CommandLineTest, DefaultsAboveTheirMaximumAreRefused) {
  ExpectRefused(ParseCommandLine({"--join-timeout", "2h"}).status(), "join_timeout_max");
  ExpectRefused(ParseCommandLine({"--operation-timeout", "2h"}).status(), "operation_timeout_max");
}

// The sample is what people start from: it must parse, and say the defaults.
TEST(SampleConfigTest, ParsesAndSaysTheDefaults) {
  std::ifstream in("deploy/irisd.toml");
  ASSERT_TRUE(in.good()) << "deploy/irisd.toml";
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  Config sample;
  const Config defaults;
  const absl::Status status = ApplyToml(text, "deploy/irisd.toml", &sample);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(sample.emu_devices, defaults.emu_devices);
  EXPECT_EQ(sample.emu_memory_bytes, defaults.emu_memory_bytes);
  EXPECT_EQ(sample.sessions.limits.max_sessions, defaults.sessions.limits.max_sessions);
  EXPECT_EQ(sample.jobs.map_timeout, defaults.jobs.map_timeout);
}

// Every commented line in the sample must also be right when it is uncommented.
TEST(SampleConfigTest, ParsesWithEverySettingUncommented) {
  std::ifstream in("deploy/irisd.toml");
  ASSERT_TRUE(in.good());
  std::string text;
  for (std::string line; std::getline(in, line);) {
    if (absl::StartsWith(line, "#") && absl::StrContains(line, " = ")) line = line.substr(1);
    text += line + "\n";
  }
  Config config;
  const absl::Status status = ApplyToml(text, "deploy/irisd.toml", &config);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace iris::server
