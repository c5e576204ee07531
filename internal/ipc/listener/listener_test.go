package listener

import (
	"net"
	"os"
	"strings"
	"testing"
)

// A listener of this process is found with its name; a port that nobody has is not.
func TestFind(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Logf("no %s here: %v", at, err)
			continue
		}
		port := uint16(l.Addr().(*net.TCPAddr).Port)
		p, ok := Find(port)
		if !ok || p.ID != os.Getpid() || !strings.HasPrefix(p.String(), "listener.test (process ") {
			t.Errorf("%s: %v, %v; want this process, %d", at, p, ok, os.Getpid())
		}
		l.Close()
		if p, ok := Find(port); ok {
			t.Errorf("%s is closed, and still %v listens", at, p)
		}
	}
}

// What cannot be seen is said to be unknown.
func TestUnknown(t *testing.T) {
	if _, ok := find(t.TempDir(), 80); ok {
		t.Error("found a listener without /proc")
	}
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/thread-self/net", 0o755); err != nil {
		t.Fatal(err)
	}
	text := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 00000000:2810 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n"
	if err := os.WriteFile(dir+"/thread-self/net/tcp", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, ok := find(dir, 10256); !ok || p.String() != "a process that is not visible from here" {
		t.Errorf("%v, %v", p, ok)
	}
}
