#include "client/ctl/doctor.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

using ::testing::HasSubstr;

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    char name[] = "/tmp/iris-doctor-XXXXXX";
    dir_ = mkdtemp(name);
  }
  ~DoctorTest() override { std::filesystem::remove_all(dir_); }
  // Gives up root's rights for a while. Returns false if this process has none.
  static bool BecomeNobody() {
    if (geteuid() != 0) return false;
    EXPECT_EQ(seteuid(65534), 0);
    return true;
  }

  std::string dir_;
};

TEST_F(DoctorTest, ThisMachineCanRunIris) {
  for (const Finding& finding : {CheckProc(), CheckPidfd(), CheckMemfdSeals(), CheckFutexWaitv()}) {
    EXPECT_NE(finding.verdict, Verdict::kFail) << finding.check << ": " << finding.detail;
  }
}

TEST_F(DoctorTest, FewOpenFilesAreAWarningVeryFewAFailure) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 512;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(CheckOpenFileLimit().verdict, Verdict::kWarn);
  limit.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const Finding finding = CheckOpenFileLimit();
  EXPECT_EQ(finding.verdict, Verdict::kFail);
  EXPECT_THAT(finding.remedy, HasSubstr("ulimit -n 1024"));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(DoctorTest, FailedPairsAreGroupedByTheirCause) {
  driver::PairTable table;
  table.devices.resize(2);
  table.devices[1].index = 1;
  table.pairs = {{.from = 0, .to = 0, .ok = true, .bytes_per_second = 2e9},
                 {.from = 0, .to = 1, .step = "map", .cause = "no link", .remedy = "link them"},
                 {.from = 1, .to = 0, .step = "map", .cause = "no link", .remedy = "link them"},
                 {.from = 1, .to = 1, .ok = true, .bytes_per_second = 3e9}};
  const std::vector<Finding> findings = PairFindings(table);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].detail, "2 of 4 proven");
  EXPECT_EQ(findings[1].check, "pairs: map");
  EXPECT_EQ(findings[1].detail, "0->1, 1->0: no link");
  EXPECT_EQ(findings[1].remedy, "link them");
  EXPECT_TRUE(AnyFailed(findings));
  EXPECT_THAT(FindingsText(findings), HasSubstr(" GB/s to       0       1\n"
                                                "  from 0     2.0    fail\n"
                                                "  from 1    fail     3.0\n"));
  EXPECT_EQ(FindingsJson(findings)[0]["pairs"][1]["cause"], "no link");
}

TEST_F(DoctorTest, TornLinesFailAndUnseenOnesWarn) {
  TornLines lines = {.n_devices = 4, .seen = {.written = 900, .read = 800, .changed = 7}};
  Finding finding = LineFinding(lines);
  EXPECT_EQ(finding.verdict, Verdict::kOk);
  EXPECT_EQ(finding.detail,
            "0 torn of 800 read, 7 of them new, while 900 were written between 4 devices");
  lines.seen.torn = 1;
  finding = LineFinding(lines);
  EXPECT_EQ(finding.verdict, Verdict::kFail);
  EXPECT_THAT(finding.remedy, HasSubstr("IRIS_CCL_LINES=0"));
  // Nothing was seen while it was written.
  lines.seen = {.written = 9, .read = 8};
  EXPECT_EQ(LineFinding(lines).verdict, Verdict::kWarn);
  finding = LineFinding(absl::ResourceExhaustedError("join: no room"));
  EXPECT_EQ(finding.verdict, Verdict::kWarn);
  EXPECT_THAT(finding.detail, HasSubstr("no room"));
}

TEST_F(DoctorTest, AMissingRuntimeDirectoryFailsAndSaysHowToStart) {
  const Finding finding = CheckRuntimeDir(dir_ + "/none");
  EXPECT_EQ(finding.verdict, Verdict::kFail);
  EXPECT_THAT(finding.remedy, HasSubstr("irisd --runtime-dir " + dir_ + "/none"));
}

TEST_F(DoctorTest, AFileIsNoRuntimeDirectory) {
  std::ofstream(dir_ + "/file") << "x";
  EXPECT_EQ(CheckRuntimeDir(dir_ + "/file").verdict, Verdict::kFail);
}

TEST_F(DoctorTest, ARuntimeDirectoryThatAnybodyCanWriteFails) {
  EXPECT_EQ(CheckRuntimeDir(dir_).verdict, Verdict::kOk);
  ASSERT_EQ(chmod(dir_.c_str(), 0777), 0);
  EXPECT_EQ(CheckRuntimeDir(dir_).verdict, Verdict::kFail);
}

TEST_F(DoctorTest, SocketsMustBeSockets) {
  EXPECT_EQ(CheckSocket(dir_ + "/irisd.sock").verdict, Verdict::kFail);
  std::ofstream(dir_ + "/irisd.sock") << "x";
  EXPECT_THAT(CheckSocket(dir_ + "/irisd.sock").detail, HasSubstr("is no socket"));
}

TEST_F(DoctorTest, DeviceNodesAreOpened) {
  EXPECT_EQ(CheckDeviceNodes(dir_, /*emulated=*/false).verdict, Verdict::kOk);
  std::ofstream(dir_ + "/kfd") << "x";
  Finding finding = CheckDeviceNodes(dir_, /*emulated=*/false);
  EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.detail;
  EXPECT_EQ(finding.detail, dir_ + "/kfd");
  std::filesystem::create_directory(dir_ + "/dri");
  std::filesystem::create_symlink(dir_ + "/gone", dir_ + "/dri/renderD128");
  finding = CheckDeviceNodes(dir_, /*emulated=*/false);
  EXPECT_EQ(finding.verdict, Verdict::kFail);
  EXPECT_EQ(finding.detail, dir_ + "/dri/renderD128: No such file or directory");
  EXPECT_EQ(CheckDeviceNodes(dir_, /*emulated=*/true).verdict, Verdict::kWarn);
}

TEST_F(DoctorTest, DeviceNodesThatAreClosedToThisUserAreNamed) {
  std::ofstream(dir_ + "/kfd") << "x";
  chmod(dir_.c_str(), 0755);
  chmod((dir_ + "/kfd").c_str(), 0);
  const bool was_root = BecomeNobody();
  const Finding finding = CheckDeviceNodes(dir_, /*emulated=*/false);
  ASSERT_EQ(seteuid(was_root ? 0 : geteuid()), 0);
  EXPECT_EQ(finding.verdict, Verdict::kFail);
  EXPECT_THAT(finding.detail, HasSubstr("permission denied: " + dir_ + "/kfd: "));
  EXPECT_THAT(finding.detail, HasSubstr("(mode 0000, owner "));
  EXPECT_THAT(finding.remedy, HasSubstr("udev"));
}

TEST_F(DoctorTest, APermissionIsNotTakenForAnIrisdThatDoesNotRun) {
  const std::string closed = dir_ + "/run";
  std::filesystem::create_directory(closed);
  std::ofstream(closed + "/irisd.sock") << "x";
  chmod(dir_.c_str(), 0755);
  chmod(closed.c_str(), 0);
  const bool was_root = BecomeNobody();
  // One that is not there comes first.
  const std::vector<Finding> findings = RunDoctor({dir_ + "/none", closed});
  ASSERT_EQ(seteuid(was_root ? 0 : geteuid()), 0);
  chmod(closed.c_str(), 0755);
  int n_found = 0;
  for (const Finding& finding : findings) {
    if (finding.check != "runtime directory" && finding.check != "irisd answers") continue;
    ++n_found;
    EXPECT_EQ(finding.verdict, Verdict::kFail);
    EXPECT_THAT(finding.detail, HasSubstr("permission denied: " + closed + " (mode 0000"));
    EXPECT_THAT(finding.remedy, HasSubstr("chmod o+x " + closed));
  }
  EXPECT_EQ(n_found, 2);
}

TEST_F(DoctorTest, WithoutIrisdEveryCheckStillRuns) {
  const std::vector<Finding> findings = RunDoctor({dir_});
  EXPECT_TRUE(AnyFailed(findings));
  EXPECT_GE(findings.size(), 9u);
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.remedy.empty(), finding.verdict == Verdict::kOk) << finding.check;
  }
}

TEST_F(DoctorTest, ASocketNobodyListensOnIsReported) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (dir_ + "/irisd.sock").c_str());
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
  const std::vector<Finding> findings = RunDoctor({dir_});
  EXPECT_EQ(findings.back().check, "irisd answers");
  EXPECT_EQ(findings.back().verdict, Verdict::kFail);
  EXPECT_THAT(findings.back().detail, HasSubstr("refused"));
}

TEST_F(DoctorTest, TextCountsAndShowsRemedies) {
  const std::string text = FindingsText({{"one", Verdict::kOk, "fine", ""},
                                         {"second", Verdict::kWarn, "so so", "mend it"},
                                         {"third", Verdict::kFail, "broken", "replace it"}});
  EXPECT_EQ(text,
            "ok    one     fine\n"
            "warn  second  so so\n"
            "              remedy: mend it\n"
            "fail  third   broken\n"
            "              remedy: replace it\n"
            "1 ok, 1 warnings, 1 failed\n");
}

TEST_F(DoctorTest, JsonHasEveryField) {
  const auto json = FindingsJson({{"one", Verdict::kFail, "d", "r"}});
  EXPECT_EQ(json.dump(), R"([{"check":"one","verdict":"fail","detail":"d","remedy":"r"}])");
}

TEST_F(DoctorTest, UcxIsShownWithTheSettingsOfTheNetwork) {
  v1::NetworkSettings settings;
  settings.set_silence_ms(5000);
  const absl::StatusOr<ucx::Library> found = ucx::Library{"libucp.so.0", "/lib/ucp.so", "1.22.0"};
  EXPECT_EQ(NetworkFinding(settings, found).verdict, Verdict::kOk);
  EXPECT_EQ(NetworkFinding(settings, found).detail,
            "UCX 1.22.0 (/lib/ucp.so), transports tcp on the interface to the rendezvous, any "
            "ports, a node is lost after 5s, jobs bring their secret");
  settings.set_interface("eth1");
  settings.set_transports("rc,tcp");
  settings.set_port_min(20000);
  settings.set_port_max(20999);
  settings.set_has_secret(true);
  settings.set_etcd("10.0.0.1:2379,b:2379");
  EXPECT_THAT(NetworkFinding(settings, found).detail,
              HasSubstr("transports rc,tcp on eth1, ports 20000-20999, a node is lost after 5s, "
                        "irisd has a secret for jobs that bring none, jobs without a rendezvous "
                        "meet by etcd (10.0.0.1:2379,b:2379)"));
  settings.set_etcd_tls(true);
  settings.set_etcd_certificate(true);
  EXPECT_THAT(NetworkFinding(settings, found).detail,
              HasSubstr("b:2379) with TLS and a certificate"));
  settings.set_direct(true);
  settings.set_devices("mlx5_0:1,eth1");
  EXPECT_EQ(NetworkFinding(settings, found).verdict, Verdict::kOk);
  EXPECT_THAT(NetworkFinding(settings, found).detail,
              HasSubstr("rc,tcp by mlx5_0:1,eth1, nodes copy directly on eth1"));
  for (const char* transports : {"", "tcp", "tcp,self"}) {
    settings.set_transports(transports);
    EXPECT_EQ(NetworkFinding(settings, found).verdict, Verdict::kWarn);
    EXPECT_THAT(NetworkFinding(settings, found).remedy, HasSubstr("turn network.direct off"));
  }
  // Jobs of one node need no UCX; a setting that names one shall be right.
  const absl::Status none = absl::FailedPreconditionError("none was found; libucp.so.0: no file");
  EXPECT_EQ(NetworkFinding(settings, none).verdict, Verdict::kWarn);
  EXPECT_THAT(NetworkFinding(settings, none).detail, HasSubstr("libucp.so.0: no file"));
  EXPECT_THAT(NetworkFinding(settings, none).remedy, HasSubstr("deploy/setup.sh"));
  settings.set_ucx("/opt/libucp.so.0");
  EXPECT_EQ(NetworkFinding(settings, none).verdict, Verdict::kFail);
  EXPECT_THAT(NetworkFinding(settings, none).remedy, HasSubstr("network.ucx"));
}

TEST_F(DoctorTest, TheFabricIsNamedOrWhyThereIsNone) {
  v1::NetworkSettings settings;
  settings.set_no_fabric("network.fabric is off");
  EXPECT_EQ(FabricFinding(settings).verdict, Verdict::kOk);
  EXPECT_THAT(FabricFinding(settings).detail, HasSubstr("none: ranks of other nodes are reached by "
                                                        "the network (network.fabric is off)"));
  settings.set_fabric("rack 00ff.1");
  EXPECT_THAT(FabricFinding(settings).detail, HasSubstr("domain \"rack 00ff.1\""));
}

TEST_F(DoctorTest, ALibraryThatAnotherUsersIrisdNamesIsNotLoaded) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives a file away";
  const std::string dir = testing::TempDir();
  const std::string socket = dir + "/irisd.sock";
  std::ofstream(socket) << "";
  EXPECT_EQ(FindUcx(dir, "/no/such/ucx").status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(chown(socket.c_str(), 4711, 4711), 0);
  const auto found = FindUcx(dir, "/no/such/ucx");
  EXPECT_EQ(found.status().code(), absl::StatusCode::kPermissionDenied) << found.status();
  EXPECT_EQ(NetworkFinding(v1::NetworkSettings(), found).verdict, Verdict::kWarn);
  // The places that irisd does not name are this machine's.
  EXPECT_NE(FindUcx(dir, "").status().code(), absl::StatusCode::kPermissionDenied);
  unlink(socket.c_str());
}

TEST_F(DoctorTest, TroubleWithWorkersIsAWarning) {
  v1::GetStatusReply status;
  EXPECT_EQ(WorkersFinding(status).verdict, Verdict::kOk);
  status.set_worker_troubles_total(3);
  status.set_last_worker_trouble("killed by signal 9 (Killed)");
  const Finding finding = WorkersFinding(status);
  EXPECT_EQ(finding.verdict, Verdict::kWarn);
  EXPECT_EQ(finding.detail, "3 ended or did not start; the last: killed by signal 9 (Killed)");
  EXPECT_FALSE(finding.remedy.empty());
}

}  // namespace
}  // namespace iris::ctl
