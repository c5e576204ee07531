package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/node"
)

// built holds the paths of the programs and images under test, which "make image images lab" makes.
var built struct{ lab, image, images, deploy, fairway, kubeProxy string }

// room limits the labs that run at a time. Its unit is eight inotify instances, and a user of a usual kernel has 128. A
// control plane needs one unit, and so does each node.
var room = semaphore.NewWeighted(6)

// beside lets the test run in parallel with others, because labs wait most of the time. nodes is the largest number of
// nodes in its lab, or 0 for no lab.
func beside(t *testing.T, nodes int64) {
	t.Helper()
	t.Parallel()
	units := unitsOf(nodes)
	if err := room.Acquire(t.Context(), units); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { room.Release(units) }) // runs after the lab is down
}

// first is beside for the longest tests. They start before the others, so that none of them runs alone at the end.
func first(t *testing.T, nodes int64) {
	t.Helper()
	units := unitsOf(nodes)
	if !room.TryAcquire(units) { // other first tests hold the room
		beside(t, nodes)
		return
	}
	t.Cleanup(func() { room.Release(units) })
	t.Parallel()
}

func unitsOf(nodes int64) int64 {
	if nodes == 0 {
		return 0
	}
	return 1 + nodes
}

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "100"); err != nil { // room is the limit
		panic(err)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces and mounts: run them as root")
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "fairway-lab-test-")
	if err == nil {
		err = build(dir)
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "build what is tested:", err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

const referencePlugins = "github.com/containernetworking/plugins/plugins/"

// build uses the binary in FAIRWAY_LAB_BIN and the files next to it. Without the variable, it builds all files into
// dir.
func build(dir string) error {
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	built.deploy = filepath.Join(root, "deploy")
	if lab := os.Getenv("FAIRWAY_LAB_BIN"); lab != "" {
		bin := filepath.Dir(lab)
		built.lab, built.image, built.images = lab, filepath.Join(bin, "fairway-image.tar"), filepath.Join(bin, "images")
		built.fairway, built.kubeProxy = filepath.Join(bin, "fairway"), filepath.Join(bin, "kube-proxy")
		return nil
	}
	built.lab, built.image, built.images = filepath.Join(dir, "fairway-lab"), filepath.Join(dir, "fairway-image.tar"), filepath.Join(dir, "images")
	built.fairway, built.kubeProxy = filepath.Join(dir, "fairway"), filepath.Join(dir, "kube-proxy")
	for _, step := range []struct {
		dir  string
		argv []string
	}{
		{root, []string{"go", "build", "-trimpath", "-o", dir + "/", "./cmd/..."}},
		{root, []string{"go", "run", "-trimpath", "./hack/mkimage", "-binary", built.fairway, "-o", built.image}},
		{filepath.Join(root, "lab"), []string{"go", "run", "-trimpath", "./images/cmd/mkimages", "-o", built.images}},
		{filepath.Join(root, "test/peers"), []string{"go", "build", "-trimpath", "-o", filepath.Join(dir, "cni-plugins") + "/", referencePlugins + "main/bridge", referencePlugins + "main/loopback", referencePlugins + "ipam/host-local"}},
		{filepath.Join(root, "lab"), []string{"go", "build", "-trimpath", "-o", built.lab, "./cmd/fairway-lab"}},
		{filepath.Join(root, "lab"), []string{"go", "build", "-trimpath", "-o", built.kubeProxy, "k8s.io/kubernetes/cmd/kube-proxy"}},
	} {
		cmd := exec.Command(step.argv[0], step.argv[1:]...)
		cmd.Dir, cmd.Env = step.dir, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(step.argv, " "), err, out)
		}
	}
	return nil
}

// A lab is the lab of one test, with its own name.
type lab struct {
	*testing.T
	name string
	port int
}

// newLab names a lab, and removes the lab after the test, even if the test fails.
func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{T: t, name: fmt.Sprintf("test-%d-%s", os.Getpid(), strings.ReplaceAll(strings.ToLower(t.Name()), "/", "-")), port: freePort(t)}
	t.Cleanup(func() {
		if t.Failed() {
			l.dumpLogs()
		}
		if out, err := l.try("down"); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
	})
	return l
}

// taken are the ports that tests have reserved. Until their labs listen, the kernel would return these ports again.
var taken sync.Map

// freePort returns a port of 127.0.0.1 that is free and that no other test gets.
func freePort(t *testing.T) int {
	t.Helper()
	for {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := listener.Addr().(*net.TCPAddr).Port
		listener.Close()
		if _, again := taken.LoadOrStore(port, true); !again {
			return port
		}
	}
}

func (l *lab) dir() string { return "/var/lib/fairway-lab-" + l.name }

// dumpLogs shows the end of every log if the test has failed.
func (l *lab) dumpLogs() {
	logs, _ := filepath.Glob(filepath.Join(l.dir(), "logs", "*"))
	for _, log := range logs {
		data, err := os.ReadFile(log)
		if err != nil {
			continue
		}
		l.Logf("%s:\n%s", log, data[max(0, len(data)-3000):])
	}
}

func (l *lab) cmd(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	l.Cleanup(cancel)
	return exec.CommandContext(ctx, built.lab, append([]string{"--name", l.name}, args...)...)
}

// upArgs returns the arguments of an up with all built programs and images.
func (l *lab) upArgs(args ...string) []string {
	return append([]string{"up", "--api-port", strconv.Itoa(l.port), "--deploy", built.deploy,
		"--image", built.image, "--images-dir", built.images}, args...)
}

func (l *lab) try(args ...string) (string, error) {
	out, err := l.cmd(args...).CombinedOutput()
	return string(out), err
}

// run runs fairway-lab, which must succeed.
func (l *lab) run(args ...string) string {
	l.Helper()
	out, err := l.try(args...)
	if err != nil {
		l.Fatalf("fairway-lab %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// input runs fairway-lab with text as standard input.
func (l *lab) input(text string, args ...string) string {
	l.Helper()
	cmd := l.cmd(args...)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	if err != nil {
		l.Fatalf("fairway-lab %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// eventually runs a command until its output contains want.
func (l *lab) eventually(want string, args ...string) string {
	l.Helper()
	return l.within(30*time.Second, want, args...)
}

// within is eventually with another time limit.
func (l *lab) within(bound time.Duration, want string, args ...string) string {
	l.Helper()
	var out string
	var err error
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if out, err = l.try(args...); err == nil && strings.Contains(out, want) {
			return out
		}
	}
	l.Fatalf("fairway-lab %s never said %q (%v): %s", strings.Join(args, " "), want, err, out)
	return ""
}

// refused runs fairway-lab, which must fail with status 1 and one line that contains want.
func (l *lab) refused(want string, args ...string) {
	l.Helper()
	refused(l.T, want, l.cmd(args...))
}

func refused(t *testing.T, want string, cmd *exec.Cmd) {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("%q: %v, want exit status 1", cmd.Args, err)
	}
	what, hint, _ := strings.Cut(strings.TrimSuffix(stderr.String(), "\n"), "\n")
	if !strings.HasPrefix(what, "error: ") || hint != "" && !strings.HasPrefix(hint, "hint: ") || strings.Contains(hint, "\n") ||
		!strings.Contains(stderr.String(), want) {
		t.Errorf("%q says %q, want a line error:, and hint: at most, with %q", cmd.Args, stderr.String(), want)
	}
}

// pids finds the lab's processes. A process belongs to the lab if its command line names the lab's directory, or if it
// is in a cgroup of the lab, as all processes of a node and its pods are. Mounts are no sign: a mount namespace from
// the time of the lab, such as another lab's containerd has, also contains the lab's mounts. A process that has ended
// but has not been waited for counts as gone. The kernel keeps it in a cgroup that is removed.
func (l *lab) pids() []int {
	l.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		l.Fatal(err)
	}
	var pids []int
	for _, proc := range procs {
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err != nil || pid == os.Getpid() || mentions(proc+"/stat", ") Z ") {
			continue
		}
		if mentions(proc+"/cmdline", l.dir()+"/") || mentions(proc+"/cgroup", "/fairway-lab-"+l.name+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

func mentions(file, what string) bool {
	data, err := os.ReadFile(file)
	return err == nil && bytes.Contains(data, []byte(what))
}

// gone fails the test for each remaining part of the lab.
func (l *lab) gone() {
	l.Helper()
	if _, err := os.Stat(l.dir()); !errors.Is(err, os.ErrNotExist) {
		l.Errorf("%s is left", l.dir())
	}
	if pids := l.pids(); len(pids) > 0 {
		for _, pid := range pids {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			l.Errorf("process %d is left: %q, %q", pid, text, state)
		}
	}
	if mentions("/proc/self/mountinfo", l.dir()+"/") {
		l.Error("mounts are left")
	}
	for _, pattern := range []string{"/sys/fs/cgroup/fairway-lab-", "/sys/fs/cgroup/*/fairway-lab-"} {
		cgroups, err := filepath.Glob(pattern + l.name)
		if err != nil || len(cgroups) > 0 {
			l.Errorf("cgroups are left: %v %v", cgroups, err)
		}
	}
}

// A machine is the state that a lab must leave unchanged.
type machine struct {
	addresses, routes, rules, tunables, cgroups, mountpoints string
}

func snapshot(t *testing.T) machine {
	t.Helper()
	read := func(argv ...string) string {
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
		}
		return string(out)
	}
	m := machine{
		addresses: read("ip", "-o", "address"),
		routes:    read("ip", "route", "show", "table", "all"),
		rules:     read("nft", "list", "ruleset"),
		tunables:  read("sysctl", "vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops", "net.ipv4.ip_forward"),
	}
	cgroups, err := filepath.Glob("/sys/fs/cgroup/*/*/")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range cgroups {
		if !strings.HasPrefix(filepath.Base(dir), "fairway-lab") { // the directory belongs to another lab
			m.cgroups += dir + "\n"
		}
	}
	// Another lab on the machine would have taken over this lab's directories.
	if others, _ := filepath.Glob("/var/lib/fairway-lab*"); len(others) == 0 {
		for _, dir := range node.Mountpoints {
			_, err := os.Stat(dir)
			m.mountpoints += fmt.Sprintln(dir, err == nil)
		}
	}
	return m
}

// unchanged compares the machine with its earlier state.
func (m machine) unchanged(t *testing.T) {
	t.Helper()
	now := snapshot(t)
	if m.mountpoints == "" || now.mountpoints == "" {
		m.mountpoints, now.mountpoints = "", ""
	}
	if now != m {
		t.Errorf("the machine was changed:\n%+v\nwas\n%+v", now, m)
	}
}

// urls returns the URLs of a node port on every node, in every family.
func urls(plan fabric.Plan, nodes int, port string) []string {
	var out []string
	for n := 1; n <= nodes; n++ {
		for _, addr := range fabric.Addrs(plan.Node(n)) {
			out = append(out, "http://"+net.JoinHostPort(addr.String(), port)+"/")
		}
	}
	return out
}
