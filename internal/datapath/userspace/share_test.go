package userspace_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// few limits the descriptors for the connections of the rig's datapath.
func (r *rig) few(descriptors int) {
	r.t.Helper()
	dp, err := userspace.New(userspace.Config{Descriptors: descriptors})
	must(r.t, err)
	r.dp = dp
}

// flood sends n datagrams from a host, each from another port.
func (r *rig) flood(from *testnet.Host, n int) {
	r.t.Helper()
	must(r.t, from.Do(func() error {
		for i := range n {
			c, err := net.DialUDP("udp", &net.UDPAddr{IP: from.Addr(true).AsSlice(), Port: 10000 + i}, net.UDPAddrFromAddrPort(vip))
			if err != nil {
				return err
			}
			if _, err := c.Write([]byte("query\n")); err != nil {
				return err
			}
			_ = c.Close()
		}
		return nil
	}))
}

// TestGreedyUDP: a client sends 2,200 datagrams, each from another port. It does not use up the descriptors or the
// ports that other clients need, and the node still has free ports.
func TestGreedyUDP(t *testing.T) {
	for name, c := range map[string]struct {
		ports  string // the node's, for sockets that ask for any port
		greedy func(*rig) *testnet.Host
		others func(*rig) []*testnet.Host
	}{
		"descriptors": {"32768 60999", func(r *rig) *testnet.Host { return r.client }, func(r *rig) []*testnet.Host { return []*testnet.Host{r.outside, r.node} }},
		"ports":       {"40000 40199", func(r *rig) *testnet.Host { return r.outside }, func(r *rig) []*testnet.Host { return []*testnet.Host{r.client, r.node} }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			if name == "descriptors" {
				r.few(400)
			}
			must(t, r.node.Sysctl("ipv4/ip_local_port_range", c.ports))
			r.pods[0].Serve("udp", r.at(0))
			r.sync(r.service(api.UDP, 0))
			r.flood(c.greedy(r), 2200)
			for _, from := range c.others(r) {
				for range 5 {
					if got := from.Ask("udp", vip, patience); got.Outcome != testnet.Answered {
						t.Fatalf("%s: %v", from.Name, got)
					}
				}
			}
			if got := r.node.Ask("udp", r.at(0), patience); got.Outcome != testnet.Answered {
				t.Errorf("the node itself: %v", got)
			}
			counts, err := r.dp.Counts(t.Context())
			must(t, err)
			for _, n := range counts {
				if n.Drops == 0 {
					t.Errorf("nothing was refused: %+v", n)
				}
			}
		})
	}
}

// TestGreedyTCP: a client that opens as many connections as possible gets its share, and its other connections end at
// once. Other clients are served. The client can reuse the connections that it closes.
func TestGreedyTCP(t *testing.T) {
	const descriptors, share = 400, 100 // two for each connection; one client gets half
	r := newRig(t, 1)
	r.few(descriptors)
	r.pods[0].Serve("tcp", r.at(0))
	r.sync(r.service(api.TCP, 0))
	for round := range 3 {
		var open []*testnet.Conn
		for i := range share + 20 {
			c, err := r.client.Dial("tcp", vip, patience)
			must(t, err)
			if got := c.Ask(patience); (got.Outcome == testnet.Answered) != (i < share) {
				t.Fatalf("round %d, connection %d: %v", round, i, got)
			}
			open = append(open, c)
		}
		if got := r.outside.Ask("tcp", nodePort, patience); got.Outcome != testnet.Answered {
			t.Errorf("another client: %v", got)
		}
		for _, c := range open {
			c.Close()
		}
		eventually(t, "the client is served again", func() bool {
			return r.client.Ask("tcp", vip, patience).Outcome == testnet.Answered
		})
		eventually(t, "all connections have ended", func() bool { return r.endpointConns() == 0 })
	}
}

// endpointConns returns the number of the first pod's connections.
func (r *rig) endpointConns() int {
	r.t.Helper()
	var out []byte
	must(r.t, r.pods[0].Do(func() (err error) {
		out, err = exec.Command("ss", "-Htn", "state", "connected", "exclude", "time-wait", "sport", "=", ":8080").Output()
		return err
	}))
	return strings.Count(string(out), "\n")
}

// hogEnv makes the child (childEnv) open files up to its limit, and close them again, as its input says.
const hogEnv = "FAIRWAY_USERSPACE_HOGS"

// hog opens files at each line of its input, and closes them at the next line.
func hog(in io.Reader) error {
	var open []*os.File
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if len(open) > 0 {
			for _, f := range open {
				_ = f.Close()
			}
			open = nil
		} else {
			for f, err := os.Open(os.DevNull); err == nil; f, err = os.Open(os.DevNull) {
				open = append(open, f)
			}
		}
		fmt.Println("done")
	}
	return nil
}

// TestOutOfDescriptors: while the process has no free descriptor, clients wait. The agent logs this once and does not
// burn CPU. Then the clients are served.
func TestOutOfDescriptors(t *testing.T) {
	r := newRig(t, 1)
	r.pods[0].Serve("tcp", r.at(0))
	cmd := exec.Command("sh", "-c", `ulimit -n 200 && exec "$0"`, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+r.at(0).String(), hogEnv+"=1")
	var log testnet.Log
	cmd.Stderr = &log
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, r.node.Do(cmd.Start))
	defer func() { _ = in.Close(); _, _ = io.Copy(io.Discard, out); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	say := func(what, want string) {
		t.Helper()
		if what != "" {
			_, err := io.WriteString(in, what+"\n")
			must(t, err)
		}
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("the agent says %q, log %s", lines.Text(), log.String())
		}
	}
	say("", "serving")
	files := openFiles(t, cmd.Process.Pid)
	if got := r.client.Ask("tcp", vip, patience); got.Outcome != testnet.Answered {
		t.Fatal(got)
	}
	// The connection must release its descriptors when it ends.
	eventually(t, "its connection has ended", func() bool { return r.endpointConns() == 0 && openFiles(t, cmd.Process.Pid) <= files })
	say("open", "done")
	waiting := make(chan testnet.Answer)
	go func() { waiting <- r.client.Ask("tcp", vip, time.Minute) }()
	eventually(t, "the agent says so", func() bool { return strings.Contains(log.String(), "clients wait") })
	before := cpu(t, cmd.Process.Pid)
	select {
	case got := <-waiting:
		t.Fatalf("a client does not wait: %v", got)
	case <-time.After(500 * time.Millisecond):
	}
	if used := cpu(t, cmd.Process.Pid) - before; used > 250*time.Millisecond {
		t.Errorf("it used %v of CPU in half a second of waiting", used)
	}
	say("close", "done")
	if got := <-waiting; got.Outcome != testnet.Answered {
		t.Errorf("afterwards: %v", got)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, log.String())
	}
}

// openFiles returns the number of a process's descriptors.
func openFiles(t *testing.T, pid int) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	return len(all)
}

// cpu returns a process's CPU time.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(t, err)
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var user, system int64 // in hundredths of a second: the 14th and 15th field of proc(5)
	_, err = fmt.Sscan(f[11]+" "+f[12], &user, &system)
	must(t, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// childConfig is the child's configuration.
func childConfig() userspace.Config {
	return userspace.Config{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
}
