package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// long is enough time for anything on any machine: what takes longer has failed.
const long = 90 * time.Second

// A lab is a cluster that fairway-lab runs.
type lab struct {
	testing.TB
	program, name string
	port          int // of the API server on 127.0.0.1
	api           *kubernetes.Clientset
	client        *testnet.Namespace // outside of the cluster
	control       *testnet.Namespace // where the API server runs
	nodes         []*node
	plane         *os.Process // the control plane, if it was started again
}

// A node is one machine of the cluster.
type node struct {
	*testnet.Namespace
	addr  netip.Addr
	init  int // its first process
	pods  []*testnet.Namespace
	addrs []netip.Addr // the pods'
}

// newLab brings a cluster up, and removes it when the test ends. It skips the test where
// fairway-lab was not built.
func newLab(t testing.TB, nodes int, options ...string) *lab {
	t.Helper()
	testnet.NeedRoot(t, "runs a cluster")
	bin := os.Getenv("FAIRWAY_LAB_BIN")
	if bin == "" {
		t.Skip("FAIRWAY_LAB_BIN names no fairway-lab [make faults]")
	}
	l := &lab{TB: t, program: bin, name: fmt.Sprintf("faults-%d", os.Getpid()), port: freePort(t)}
	l.removeOld()
	t.Cleanup(func() {
		if t.Failed() {
			l.dumpLogs()
		}
		l.run("down")
		l.reap()
	})
	bins := filepath.Dir(bin)
	deploy, err := filepath.Abs("../../deploy")
	if err != nil {
		t.Fatal(err)
	}
	l.run(append([]string{"up", "--nodes", strconv.Itoa(nodes), "--api-port", strconv.Itoa(l.port), "--deploy", deploy, "--load-balancer", "none",
		"--image", filepath.Join(bins, "fairway-image.tar"), "--images-dir", filepath.Join(bins, "images")}, options...)...)
	l.connect(nodes)
	return l
}

func freePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// removeOld removes the labs of runs that were killed.
func (l *lab) removeOld() {
	dirs, _ := filepath.Glob("/var/lib/fairway-lab-faults-*")
	for _, dir := range dirs {
		name := strings.TrimPrefix(dir, "/var/lib/fairway-lab-")
		pid := strings.TrimPrefix(name, "faults-")
		if _, err := os.Stat("/proc/" + pid); err != nil {
			old := *l
			old.name = name
			old.run("down")
		}
	}
}

// connect opens what there is of the cluster: namespaces, and the API as administrator.
func (l *lab) connect(nodes int) {
	l.Helper()
	var state struct {
		Processes []struct {
			Name string
			PID  int
		}
	}
	text, err := os.ReadFile(l.path("lab.json"))
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil {
		l.Fatalf("read the lab: %v", err)
	}
	pids := map[string]int{}
	for _, p := range state.Processes {
		pids[p.Name] = p.PID
	}
	l.client = testnet.OpenNamespace(l, "client", l.path("net", "client"))
	l.control = testnet.OpenNamespace(l, "control-plane", l.path("net", "control-plane"))
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i+1)
		l.nodes = append(l.nodes, &node{
			Namespace: testnet.OpenNamespace(l, name, l.path("net", name)),
			addr:      netip.AddrFrom4([4]byte{192, 168, 49, byte(2 + i)}),
			init:      pids[name],
		})
	}
	if l.plane, err = os.FindProcess(pids["control-plane"]); err != nil {
		l.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", l.path("kubeconfig"))
	if err != nil {
		l.Fatal(err)
	}
	config.QPS, config.Timeout = -1, 30*time.Second
	if l.api, err = kubernetes.NewForConfig(config); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) path(elem ...string) string {
	return filepath.Join(append([]string{"/var/lib/fairway-lab-" + l.name}, elem...)...)
}

// run runs fairway-lab, which must succeed.
func (l *lab) run(args ...string) string {
	l.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, l.program, append([]string{"--name", l.name}, args...)...).CombinedOutput()
	if err != nil {
		l.Fatalf("fairway-lab %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// on runs a program of this machine in the node's network namespace. It must succeed.
func (l *lab) on(n *node, argv ...string) string {
	l.Helper()
	var out []byte
	err := n.Do(func() (err error) {
		out, err = exec.Command(argv[0], argv[1:]...).CombinedOutput()
		return err
	})
	if err != nil {
		l.Fatalf("%s on %s: %v\n%s", strings.Join(argv, " "), n.Name, err, out)
	}
	return string(out)
}

// dumpLogs shows the end of every log of a lab whose test has failed.
func (l *lab) dumpLogs() {
	logs, _ := filepath.Glob(l.path("logs", "*"))
	pods, _ := filepath.Glob(l.path("nodes", "*", "fs", "var", "log", "pods", "kube-system_fairway-agent*", "*", "*.log"))
	for _, log := range append(logs, pods...) {
		if data, err := os.ReadFile(log); err == nil {
			l.Logf("%s:\n%s", log, data[max(0, len(data)-4000):])
		}
	}
}

// agent returns the process id of the node's agent, 0 if none runs.
func (l *lab) agent(n *node) int {
	for _, pid := range l.processes(n, "fairway", "agent") {
		return pid
	}
	return 0
}

// processes returns the processes in the node's network namespace, whatever their PID
// namespaces are, that have these arguments in their command line.
func (l *lab) processes(n *node, arguments ...string) (pids []int) {
	var want, have unix.Stat_t
	if err := unix.Stat(n.Path(), &want); err != nil {
		l.Fatal(err)
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		dir := filepath.Dir(file)
		line, err := os.ReadFile(file)
		if err != nil || !strings.Contains("/"+string(line), "/"+strings.Join(arguments, "\x00")+"\x00") || unix.Stat(dir+"/ns/net", &have) != nil || have.Ino != want.Ino {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// otherAgent waits until an agent runs on the node that is not the process old.
func (l *lab) otherAgent(n *node, old int) (pid int) {
	l.Helper()
	l.await("another agent on "+n.Name, func() error {
		if pid = l.agent(n); pid == 0 || pid == old {
			return fmt.Errorf("process %d", pid)
		}
		return nil
	})
	return pid
}

// healthy asks the node's agent how it is.
func (l *lab) healthy(n *node) error {
	_, err := l.get(n, "http://127.0.0.1:10256/healthz")
	return err
}

// get asks over HTTP on the node. An answer other than 200 is an error.
func (l *lab) get(n *node, url string) (string, error) {
	client := http.Client{Timeout: long, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = n.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s (%v)", url, resp.Status, text, err)
	}
	return string(text), nil
}

// agentLog is what the agents that were on the node have logged.
func (l *lab) agentLog(n *node) string {
	files, _ := filepath.Glob(l.path("nodes", n.Name, "fs", "var", "log", "pods", "kube-system_fairway-agent*", "*", "*.log"))
	var all strings.Builder
	for _, file := range files {
		text, _ := os.ReadFile(file)
		all.Write(text)
	}
	return all.String()
}

// kill sends a signal to a process of the lab.
func (l *lab) kill(pid int, signal unix.Signal) {
	l.Helper()
	if err := unix.Kill(pid, signal); err != nil {
		l.Fatalf("signal %v to process %d: %v", signal, pid, err)
	}
}

// await waits until done returns nil, and fails the test if that takes too long.
func (l *lab) await(what string, done func() error) {
	l.Helper()
	if err := within(long, done); err != nil {
		l.Fatalf("%s: %v", what, err)
	}
}

// within waits until done returns nil, or returns its last error when the time is over.
func within(d time.Duration, done func() error) (err error) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = done(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("not within %v: %w", d, err)
}
