package testnet

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCgroup: only the sockets and programs of a host with a cgroup are in the cgroup. A kernel rule tells them apart.
func TestCgroup(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	before, err := threadCgroup()
	if err != nil {
		t.Fatal(err)
	}
	dir := s.a.Cgroup()
	dead := filepath.Join(before, cgroupPrefix+"4194305-pod") // no process has this number
	if err := os.Mkdir(dead, 0o755); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	s.b.Cgroup()
	if _, err := os.Stat(dead); err == nil {
		t.Error("the cgroup of a test that has gone is left")
	}
	var path string
	err = s.a.Do(func() error {
		out, err := exec.Command("sed", "-n", "s/^0:://p", "/proc/self/cgroup").Output()
		path = strings.TrimSpace(string(out))
		return err
	})
	if err != nil || filepath.Base(path) != filepath.Base(dir) {
		t.Fatalf("a program of the host is in %s, %v; want %s", path, err, dir)
	}
	if after, err := threadCgroup(); err != nil || after != before {
		t.Errorf("the test is in %s, %v; was in %s", after, err, before)
	}

	below, err := filepath.Rel("/sys/fs/cgroup", dir) // nft looks there
	if err != nil {
		t.Fatal(err)
	}
	rules := fmt.Sprintf(`table inet t {
		chain out {
			type filter hook output priority 0;
			tcp dport 81 socket cgroupv2 level %d %q reject with tcp reset
		}
	}`, strings.Count(path, "/"), below)
	if err := s.a.Do(func() error { return nft(rules) }); err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(podB4, 81)
	s.b.Serve("tcp", at)
	if got := s.a.Ask("tcp", at, 20*time.Second); got.Outcome != Refused {
		t.Errorf("from the cgroup: %v, want it refused", got)
	}
	s.a.cgroup = ""
	if got := s.a.Ask("tcp", at, 20*time.Second); got.Outcome != Answered {
		t.Errorf("from another cgroup: %v, want an answer", got)
	}
}
