package testnet

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

type runs func() int

func (r runs) Run() int { return r() }

// TestMainFindsLeaks tests the leak check itself: it finds a leaked goroutine and a leaked descriptor. It is not
// parallel, because it looks at the whole process.
func TestMainFindsLeaks(t *testing.T) {
	before := descriptors()
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if left := leftDescriptors(before); !strings.Contains(left, "/dev/null") {
		t.Errorf("an open file is not found: %q", left)
	}
	f.Close()
	if left := leftDescriptors(before); left != "" {
		t.Errorf("a closed file is found: %q", left)
	}
	stop := make(chan struct{})
	go func() { <-stop }()
	if left := leftGoroutines(); !strings.Contains(left, "TestMainFindsLeaks") {
		t.Errorf("a goroutine is not found: %q", left)
	}
	close(stop)
	var out strings.Builder
	if code := run(runs(func() int { return 3 }), &out); code != 3 {
		t.Errorf("a failed run ended with %d", code)
	}
	// From here on, the test's own runner is a leaked goroutine.
	if left := leaks(before, time.Millisecond); !strings.Contains(left, "testing") {
		t.Errorf("the runner is not found: %q", left)
	}
}

// TestSplicePipes: a pipe that the runtime keeps for splice is no leak.
func TestSplicePipes(t *testing.T) {
	before := descriptors()
	func() {
		from, to := pair(t), pair(t)
		if _, err := from[0].Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		from[0].Close()
		if n, err := io.Copy(to[0], from[1]); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		for _, c := range []net.Conn{from[1], to[0], to[1]} {
			c.Close()
		}
	}()
	if left := leftDescriptors(before); !strings.Contains(left, "pipe:") {
		t.Fatalf("the runtime keeps no pipe, so that this test shows nothing: %q", left)
	}
	// The runner's goroutines are always left, so a single look must be enough.
	for end := time.Now().Add(time.Minute); ; {
		left := leaks(before, 0)
		if !strings.Contains(left, "descriptor") {
			break
		}
		if time.Now().After(end) {
			t.Fatal(left)
		}
	}
}

// pair returns the two ends of a TCP connection over loopback.
func pair(t *testing.T) [2]net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return [2]net.Conn{a, b}
}
